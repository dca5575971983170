"""HTTP/1.1 as bytes: parsing, validation and serialisation of requests and responses, without any I/O.

The rest of the program uses `request.py` and `response.py` to parse and `serialise.py` to write. Below them,
`framing.py` cuts a stream into messages, `chunks.py` follows a chunked body, `fields.py` collects and validates header
fields, and `target.py` validates the request line and the authority. llhttp (through httptools) checks the grammar;
messages that it accepts although they are unsafe are refused here.
"""
