package shellwire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/script"
)

// FuzzQuote compares quoted arguments with the script engine's result of parsing them.
func FuzzQuote(f *testing.F) {
	f.Add("k8s-nodes", "")
	f.Add("it's", "a # b $HOME ${x} * [ & ! ? \"")
	f.Add("; exec true", "\\'")
	f.Add("0", "--")
	f.Add("-x", "--y=z")
	f.Fuzz(func(t *testing.T, a, b string) {
		if strings.ContainsAny(a+b, "\r\n") {
			return // Run rejects commands of more than one line
		}
		state, err := script.NewState(t.Context(), t.TempDir(), []string{"HOME=/root", "x=y"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = state.CloseAndWait(io.Discard) }()
		var got []string
		engine := script.Engine{Cmds: map[string]script.Cmd{"take": script.Command(script.CmdUsage{Summary: "Take"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) { got = args; return nil, nil })}}
		// After "--" no argument is a flag: the engine recognizes flags, quoting does not.
		err = engine.ExecuteLine(state, Quote([]string{"take", "--", a, b}), io.Discard)
		if err != nil || !slices.Equal(got, []string{a, b}) {
			t.Errorf("%q, %q arrive as %q (%v)", a, b, got, err)
		}
	})
}

// Run ends when the agent sends nothing for the idle limit, and only then.
func TestRun_IdleLimit(t *testing.T) {
	t.Parallel()
	const idle = 30 * time.Second
	for name, c := range map[string]struct {
		idle, pause time.Duration
		silent      bool // the agent sends no end marker
		takes       time.Duration
		want        error
	}{
		"an answer before each limit": {idle, idle - time.Second, false, 4 * (idle - time.Second), nil},
		"silence after three lines":   {idle, time.Second, true, 3*time.Second + idle, ErrNoAnswer},
		"no limit":                    {0, 100 * idle, false, 400 * idle, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				go func() {
					_, _ = bufio.NewReader(far).ReadString('\n')
					for range 3 {
						time.Sleep(c.pause)
						fmt.Fprintln(far, "a row")
					}
					if !c.silent {
						time.Sleep(c.pause)
						fmt.Fprintln(far, EndMarker)
					}
				}()
				conn := newConn(near)
				defer conn.Close()
				began, rows := time.Now(), 0
				err := conn.Run(t.Context(), "db/show x", c.idle, func(string) { rows++ })
				if took := time.Since(began); took != c.takes || rows != 3 || !errors.Is(err, c.want) {
					t.Errorf("%d rows, %v after %v, want %v after %v", rows, err, took, c.want, c.takes)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // the agent does not even read the command
		near, far := net.Pipe()
		defer far.Close()
		conn := newConn(near)
		defer conn.Close()
		if err := conn.Run(t.Context(), "db/show x", idle, nil); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("%v, want %v", err, ErrNoAnswer)
		}
	})
}
