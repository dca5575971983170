"""HTTP/1.1 as bytes: requests and responses parsed, judged and written, without any I/O.

`request.py` and `response.py` are what the rest of the program uses, with `serialise.py` for the way back. Under them
`framing.py` cuts a stream into messages, `chunks.py` follows a chunked body, `fields.py` collects and judges header
fields, `target.py` the request line and the authority. llhttp (through httptools) is the grammar; what it lets pass and
must not is refused here.
"""
