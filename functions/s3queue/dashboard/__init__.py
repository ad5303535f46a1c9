"""The REST API and the page that operators watch: the library's own calls over HTTP, in Lambda or on 127.0.0.1."""
