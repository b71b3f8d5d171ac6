package shellwire

import (
	"io"
	"slices"
	"strings"
	"testing"

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
