package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/shellwire"
)

// echoShell answers each command with its text: as a line, or for --json as an object.
func echoShell(t *testing.T) (socket string) {
	t.Helper()
	socket = serve(t, nil)
	l := listen(t, filepath.Join(filepath.Dir(socket), shellwire.SocketName))
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 1000)
			n, _ := conn.Read(buf)
			line := strings.TrimSuffix(string(buf[:n]), "\n")
			if command, asJSON := strings.CutSuffix(line, " --json"); asJSON {
				text, _ := json.Marshal(map[string]string{"command": command})
				line = string(text)
			}
			fmt.Fprintf(conn, "[stdout]\n%s\n%s\n", line, shellwire.EndMarker)
			conn.Close()
		}
	}()
	return socket
}

// TestServiceMaps_Commands checks the shell command for each command line, and the conversion of the shell's JSON to -o json and yaml.
func TestServiceMaps_Commands(t *testing.T) {
	t.Parallel()
	socket := echoShell(t)
	for typed, want := range map[string]string{
		"bpf lb list":                                     "lb/list",
		"bpf lb list --frontends":                         "lb/list --frontends",
		"bpf lb list --backends":                          "lb/list --backends",
		"bpf lb list --revnat":                            "lb/list --revnat",
		"bpf lb list --source-ranges":                     "lb/list --source-ranges",
		"bpf nat list":                                    "nat/list",
		"bpf nat list --service shop/web --pod shop/cart": "nat/list --pod=shop/cart --service=shop/web",
		"bpf nat top --endpoint 7":                        "nat/top --endpoint=7",
		"bpf nat flush --service shop/web":                "nat/flush --service=shop/web",
		"bpf nat flush --all":                             "nat/flush --all",
		"bpf nat flush --address fd00::7 --endpoint 7 --service a/b": "nat/flush --endpoint=7 --address=fd00::7 --service=a/b",
	} {
		for output, printed := range map[string]string{"": want + "\n", " -o json": fmt.Sprintf("{\n  \"command\": %q\n}\n", want),
			" -o yaml": "command: " + want + "\n"} {
			if code, out, errs := run(t, socket, strings.Fields(typed+output)...); code != 0 || out != printed {
				t.Errorf("%s%s: exit %d, %q, want %q %s", typed, output, code, out, printed, errs)
			}
		}
	}
	for _, typed := range []string{"bpf lb list --backends --revnat", "bpf lb list more", "bpf nat list --all", "bpf nat list more", "bpf nat top -o xml"} {
		if code, out, _ := run(t, socket, strings.Fields(typed)...); code != exitUsage || out != "" {
			t.Errorf("%s: exit %d, %q", typed, code, out)
		}
	}
}
