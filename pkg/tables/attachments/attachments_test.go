package attachments

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
)

// TestReplaced_WaitsForHooksOfSockets: Replaced is false while any hook may have a program of a previous run, and true for a hook that has none and
// cannot be attached.
func TestReplaced_WaitsForHooksOfSockets(t *testing.T) {
	t.Parallel()
	done, pending, failed := reconciler.StatusDone(), reconciler.StatusPending(), reconciler.StatusError(statedb.ErrTableNotRegistered)
	hook := func(kind Kind, name string, program uint32, vacant bool, status reconciler.Status) *Attachment {
		return &Attachment{Kind: kind, Device: "x", Hook: name, ProgramID: program, Vacant: vacant, Status: status}
	}
	all := []*Attachment{hook(Block, "ingress", 1, false, done), hook(Block, "egress", 2, false, done), hook(TCX, "egress", 3, false, done),
		hook(Hold, "both", 0, false, pending), hook(PodLink, "both", 0, false, pending)}
	sockets := func(program uint32, vacant bool, status reconciler.Status) []*Attachment {
		return append([]*Attachment{hook(CGroup, "connect4", program, vacant, status)}, all...)
	}
	for name, c := range map[string]struct {
		rows []*Attachment
		want bool
	}{
		"sockets are not served":                      {all, true},
		"one block is missing":                        {all[1:], false},
		"no device":                                   {all[:2], false},
		"a hook of sockets runs this generation":      {sockets(4, false, done), true},
		"one must keep a program of a previous run":   {sockets(0, false, done), false},
		"one waits":                                   {sockets(4, false, pending), false},
		"one waits again, and was vacant":             {sockets(4, true, pending), false},
		"one fails and keeps its program":             {sockets(4, false, failed), false},
		"one fails and has none":                      {sockets(4, true, failed), true},
		"one has none and must have none of this run": {sockets(0, true, failed), false},
	} {
		db := statedb.New()
		table, err := NewTable(db)
		require.NoError(t, err)
		txn := db.WriteTxn(table)
		for _, a := range c.rows {
			_, _, err := table.Insert(txn, a)
			require.NoError(t, err)
		}
		require.Equal(t, c.want, Replaced(txn.Commit(), table), name)
	}
}
