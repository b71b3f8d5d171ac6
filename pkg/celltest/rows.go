package celltest

import (
	"reflect"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// PutRow inserts a row, or deletes it.
func PutRow[R any](tb testing.TB, txn statedb.WriteTxn, table statedb.RWTable[R], row R, deleted bool) {
	tb.Helper()
	write := table.Insert
	if deleted {
		write = table.Delete
	}
	_, _, err := write(txn, row)
	require.NoError(tb, err)
}

// YAMLRoundTrips reports whether the YAML library restores texts unchanged. The library loses some texts with line breaks after
// leading white space, because its block scalars then lack an indentation indicator. Tests of rows that must survive YAML
// skip these texts.
func YAMLRoundTrips(texts ...string) bool {
	type document struct {
		One  string
		Many []string
		Last string
	}
	for _, text := range texts {
		in := document{text, []string{text, "0", text}, "0"}
		var out document
		if b, err := yaml.Marshal(in); err != nil || yaml.Unmarshal(b, &out) != nil || !reflect.DeepEqual(in, out) {
			return false
		}
	}
	return true
}
