package loader

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
)

// A program of a previous run may have no steps, so a missing pin of such a program is no error.
func TestUnpinned_OnlyProgramsOfThisRun(t *testing.T) {
	t.Parallel()
	const block = podlink.IngressBlock
	seen := observed{Filters: map[uint32]uint32{block: 7}, Unpinned: map[uint32]error{block: unix.EROFS}}
	row := attachments.Attachment{Kind: attachments.Block, IfIndex: int(block), ProgramID: 7}
	require.ErrorIs(t, unpinned(&row, seen), unix.EROFS)
	for _, id := range []uint32{0, 8} { // not loaded, not attached yet
		row.ProgramID = id
		require.NoError(t, unpinned(&row, seen))
	}
}
