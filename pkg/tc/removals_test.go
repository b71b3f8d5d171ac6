package tc

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestPrivilegedRemovals_TellOfADeletedClsactAndOfNothingElse(t *testing.T) {
	t.Parallel()
	testnet.New(t).Do(func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "one", Index: 11}, PeerName: "other"}); err != nil {
			t.Error(err)
			return
		}
		h, err := Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer h.Close()
		removals, err := OpenRemovals()
		if err != nil {
			t.Error(err)
			return
		}
		defer removals.Close()
		if err := errors.Join(h.EnsureClsact(11, Blocks{}), h.DeleteClsact(11)); err != nil {
			t.Error(err)
		}
		if gone, err := removals.Next(t.Context()); err != nil || !slices.Equal(gone, []int{11}) {
			t.Errorf("told of %v, %v", gone, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if gone, err := removals.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("told of %v, %v", gone, err)
		}
	})
}
