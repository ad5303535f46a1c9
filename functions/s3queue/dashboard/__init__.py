"""The REST API and the dashboard's page: the library's own calls over HTTP, in Lambda or on 127.0.0.1."""
