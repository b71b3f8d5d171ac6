package cli

import (
	"slices"
	"testing"
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
