"""A server of small JSON documents."""

from tests.links.web import WebAnswer, WebRequest


class Documents:
    """A server of small JSON documents, with ETags or without."""

    def __init__(self, etags: bool) -> None:
        self.etags = etags
        self.kept: dict[str, tuple[int, bytes]] = {}
        self.down = False
        self.deletes = True
        self.token: str | None = None
        self.url = ""

    def handle(self, request: WebRequest) -> WebAnswer:
        if self.down:
            return WebAnswer(500)
        if self.token is not None and request.headers.get("authorization") != self.token:
            return WebAnswer(401)
        rev, body = self.kept.get(request.path, (0, b""))
        tag = {"etag": f'"{rev}"'} if self.etags else {}
        if request.verb == "GET":
            return WebAnswer(200, body, tag) if rev else WebAnswer(404)
        if request.verb == "DELETE" and not self.deletes:
            return WebAnswer(405)
        if self.etags and (
            (request.headers.get("if-none-match") == "*" and rev)
            or ("if-match" in request.headers and request.headers["if-match"] != f'"{rev}"')
        ):
            return WebAnswer(412)
        if request.verb == "DELETE":
            self.kept.pop(request.path, None)
            return WebAnswer(204)
        self.kept[request.path] = (rev + 1, request.body)
        return WebAnswer(200, headers={"etag": f'"{rev + 1}"'} if self.etags else {})
