package endpointmanager

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// For any set of conflicting files: each id, attachment, link and address has one owner afterwards, no address is lost, and a complete file without a conflict
// is unchanged.
func TestResolveConflicts_OneOwnerPerResourceNoAddressLost(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		list := randomFiles(rnd)
		before := map[netip.Addr]bool{}
		for _, f := range list {
			before[f.ep.IPv4], before[f.ep.IPv6] = true, true
		}
		delete(before, netip.Addr{})

		resolveConflicts(list)

		owners := map[any]bool{}
		own := func(thing any) {
			require.False(t, owners[thing], "seed %d: %v has two owners", seed, thing)
			owners[thing] = true
		}
		for _, f := range list {
			if f.ep == nil {
				continue
			}
			require.NotZero(t, f.ep.ID, "seed %d", seed)
			own(f.ep.ID)
			own(attachmentKey(f.ep.AttachmentID()))
			if f.ep.HostIfName != "" {
				own(linkKey(f.ep.HostIfName))
			}
			for _, a := range []netip.Addr{f.ep.IPv4, f.ep.IPv6} {
				if a.IsValid() {
					own(a)
					delete(before, a)
				}
			}
			require.Equal(t, f.damage == nil, f.ep.Quarantine == "", "seed %d: %+v", seed, f)
		}
		require.Empty(t, before, "seed %d: lost addresses", seed)
	}
}

// randomFiles draws from few values, so that files conflict.
func randomFiles(rnd *rand.Rand) []found {
	list := make([]found, 1+rnd.IntN(8))
	for i := range list {
		ep := &endpoints.Endpoint{
			ID: uint16(i + 1), ContainerID: fmt.Sprint("c", rnd.IntN(4)), IfName: "eth0", HostIfName: hostName(rnd.IntN(4)),
			CreatedAt: time.Unix(rnd.Int64N(3), 0),
		}
		if rnd.IntN(4) > 0 {
			ep.IPv4 = netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + rnd.IntN(4))})
		}
		if rnd.IntN(4) > 0 {
			ep.IPv6 = netip.MustParseAddr(fmt.Sprintf("fd00::%d", 1+rnd.IntN(4)))
		}
		list[i] = found{name: fileName(ep.ID), ep: ep}
		if rnd.IntN(3) == 0 {
			list[i].damage, ep.Quarantine = statefile.ErrCorrupt, "damaged"
			ep.ID = uint16(rnd.IntN(3)) // the name of the file gave no id, or a wrong one
		}
		if rnd.IntN(6) == 0 && list[i].damage != nil {
			ep.ContainerID, ep.IfName = "", ""
		}
	}
	return list
}
