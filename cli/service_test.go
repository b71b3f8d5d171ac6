package cli

import (
	"strings"
	"testing"
)

const oneService = `{"spec":{"id":1,"frontend-address":{"ip":"10.96.0.1","port":80,"protocol":"TCP","scope":"external"},
"flags":{"type":"ClusterIP","namespace":"shop","name":"web"},"backend-addresses":[
{"ip":"10.0.1.7","port":8080,"state":"active","nodeName":"node-1"},{"ip":"fd00::7","port":8080,"state":"terminating","nodeName":"node-2"}]}}`

func TestService(t *testing.T) {
	t.Parallel()
	socket := serve(t, fakeAPI{"GET /v1/service": "[" + oneService + `,{"spec":{"id":2,"frontend-address":{"ip":"192.0.2.1","port":30080,"protocol":"UDP",
"scope":"internal"},"flags":{"type":"NodePort","namespace":"shop","name":"web"}}}]`, "GET /v1/service/1": oneService})
	want := `ID  FRONTEND                      TYPE       SERVICE   BACKEND                       NODE
1   10.96.0.1:80/TCP              ClusterIP  shop/web  10.0.1.7:8080 (active)        node-1
                                                       [fd00::7]:8080 (terminating)  node-2
2   192.0.2.1:30080/UDP (inside)  NodePort   shop/web  -                             -
`
	if code, out, errs := run(t, socket, "service", "list"); code != 0 || out != want {
		t.Errorf("%d\n%s%s\nwant\n%s", code, out, errs, want)
	}
	if code, out, _ := run(t, socket, "service", "get", "1", "-o", "json"); code != 0 || !strings.Contains(out, `"nodeName": "node-2"`) {
		t.Errorf("%d\n%s", code, out)
	}
	if code, _, errs := run(t, socket, "service", "get", "3"); code == 0 || !strings.Contains(errs, "waggle service list") {
		t.Errorf("%d %s", code, errs)
	}
	if code, _, errs := run(t, socket, "service", "get", "web"); code == 0 || !strings.Contains(errs, "want a number") {
		t.Errorf("%d %s", code, errs)
	}
}
