package cli

import "testing"

func TestFunction_HookNameWithoutPosition(t *testing.T) {
	t.Parallel()
	for hook, want := range map[string]string{
		"statedb.newHiveDB.func1 (.../statedb@v0.8.3/cell.go:34)":                "statedb.newHiveDB.func1",
		"github.com/waggle-net/waggle/cells/datapath/loader.(*generation).start": "loader.(*generation).start",
		"reconcile-routes (reconciler.Register[...].func3 (.../builder.go:93))":  "reconcile-routes",
		"maps.(*store).start": "maps.(*store).start",
		"":                    "",
	} {
		if got := function(hook); got != want {
			t.Errorf("function(%q) = %q, want %q", hook, got, want)
		}
	}
}
