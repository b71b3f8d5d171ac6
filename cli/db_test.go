package cli

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/shellwire"
)

// The input is the output of statedb's command.
func TestTableSizes_ReadsTheShellsColumns(t *testing.T) {
	t.Parallel()
	got := tableSizes(`Name                   Object count   Zombie objects   Indexes                   Initializers   Go type                Last WriteTxn
api-servers            0              0                url                       []             apiservers.Server
endpoints              12             3                id, attachment, pod       [x]            *endpoints.Endpoint    endpoint-manager (1s ago)
`)
	if len(got) != 2 || got[0].Name != "api-servers" || got[1].Objects != 12 || got[1].Deleted != 3 ||
		!slices.Equal(got[1].Indexes, []string{"id", "attachment", "pod"}) {
		t.Errorf("%+v", got)
	}
}

func TestObjectsIn_AcceptsStreamsAndLists(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"": 0, "{\"a\":1}\n{\"a\":2}\n": 2, `[{"a":1},{"a":2},3]`: 3, "{\"a\":\n1}": 1} {
		if got, err := objectsIn(text); err != nil || len(got) != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	if _, err := objectsIn("{\"a\":1} no"); err == nil {
		t.Error("text that is no JSON was taken")
	}
}

// A shell that accepts the connection and sends nothing, as that of an agent that hangs, ends commands after --timeout.
func TestShellCommands_RespectTimeout(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "waggle.sock")
	shell := filepath.Join(filepath.Dir(socket), shellwire.SocketName)
	acceptFrom(t, listen(t, shell), func(net.Conn) {})
	for _, command := range []string{"db show x", "db get x id 1 -o json", "shell -- db/show x"} {
		args := strings.Fields("--timeout=20ms " + command)
		if code, _, errs := run(t, socket, args...); code != exitUnreachable || !strings.Contains(errs, shell) || !strings.Contains(errs, "/livez") {
			t.Errorf("%s: exit %d: %s", command, code, errs)
		}
	}
}

// The shell of an agent that ends during the command does not answer.
func TestShellCommands_AgentEnds(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "waggle.sock")
	acceptFrom(t, listen(t, filepath.Join(filepath.Dir(socket), shellwire.SocketName)), func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		fmt.Fprintln(c, "Name")
		c.Close()
	})
	if code, out, errs := run(t, socket, "db", "show", "x"); code != exitUnreachable || out != "Name\n" {
		t.Errorf("exit %d, %q: %s", code, out, errs)
	}
}

// The timeout does not apply to a command that waits for changes.
func TestIdleLimit(t *testing.T) {
	t.Parallel()
	a := &app{timeout: 1}
	for command, want := range map[string]bool{"db/watch x": false, " db/watch": false, "db/show x": true, "db/watched": true, "": true} {
		if got := a.idleLimit(command) == a.timeout; got != want {
			t.Errorf("%q: limited: %v, want %v", command, got, want)
		}
	}
}
