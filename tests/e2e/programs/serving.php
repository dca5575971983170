<?php // Answers every request with its process id: `php -S 127.0.0.1:PORT serving.php`.
echo getmypid();
