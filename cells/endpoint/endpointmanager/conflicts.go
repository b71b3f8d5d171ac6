package endpointmanager

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// resolveConflicts ensures that no two files claim the same id, attachment, link or address. The more trustworthy file keeps the claim. The other file becomes
// a quarantined row with its remaining claims, or is moved to bad/ when it has no address left.
func resolveConflicts(list []found) {
	taken := map[any]uint16{} // an attachment, the name of a link or an address -> its endpoint
	ids := map[uint16]bool{}
	order := trusted(list)
	var homeless []*found // endpoints without an id of their own
	for _, f := range order {
		if f.ep.ID == 0 || ids[f.ep.ID] {
			f.ep.ID = 0
			homeless = append(homeless, f)
			continue
		}
		ids[f.ep.ID] = true
	}
	assignIDs(homeless, ids)
	for _, f := range order {
		if f.ep != nil {
			f.yield(taken)
		}
	}
}

func assignIDs(homeless []*found, ids map[uint16]bool) {
	id := uint16(0)
	for _, f := range homeless {
		for id++; id <= maxID && ids[id]; id++ {
		}
		if id > maxID {
			f.ep = nil
			continue
		}
		f.ep.ID = id
	}
}

type (
	attachmentKey string
	linkKey       string
)

// yield removes the claims of f that another endpoint owns, and takes the remaining ones.
func (f *found) yield(taken map[any]uint16) {
	ep := f.ep
	if ep.ContainerID == "" {
		ep.ContainerID, ep.IfName = nameless(ep.ID)
	}
	if other, found := taken[attachmentKey(ep.AttachmentID())]; found {
		f.lose("attachment "+ep.AttachmentID(), other)
		ep.ContainerID, ep.IfName = nameless(ep.ID)
	}
	if other, found := taken[linkKey(ep.HostIfName)]; found && ep.HostIfName != "" {
		f.lose("link "+ep.HostIfName, other)
		ep.HostIfName, ep.HostIfIndex = "", 0
	}
	for _, a := range []*netip.Addr{&ep.IPv4, &ep.IPv6} {
		if other, found := taken[*a]; found && a.IsValid() {
			f.lose("address "+a.String(), other)
			*a = netip.Addr{}
		}
	}
	if f.damage != nil && !ep.IPv4.IsValid() && !ep.IPv6.IsValid() && !f.named() {
		f.ep = nil // no address is left, and no DEL could name the endpoint
		return
	}
	taken[attachmentKey(ep.AttachmentID())], taken[linkKey(ep.HostIfName)] = ep.ID, ep.ID
	taken[ep.IPv4], taken[ep.IPv6] = ep.ID, ep.ID
}

func (f *found) lose(what string, other uint16) {
	err := fmt.Errorf("%w: %s belongs to endpoint %d", statefile.ErrCorrupt, what, other)
	f.damage = errors.Join(f.damage, err)
	if f.ep.Quarantine == "" {
		f.ep.Quarantine = what + " belongs to endpoint " + strconv.Itoa(int(other)) + " as well"
	}
}

// named reports whether a DEL of the runtime can name the endpoint.
func (f *found) named() bool {
	container, _ := nameless(f.ep.ID)
	return f.ep.ContainerID != container
}

// nameless returns a generated attachment for an endpoint whose attachment is unknown, so that an operator can see and delete it.
func nameless(id uint16) (container, ifName string) {
	return "unknown-" + strconv.Itoa(int(id)), "unknown"
}

// byTrust orders complete files before damaged ones, and newer files before older ones.
func byTrust(a, b *found) int {
	if whole := cmp.Compare(flag(a.damage != nil), flag(b.damage != nil)); whole != 0 {
		return whole
	}
	return endpoints.CompareAge(b.ep, a.ep)
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// trusted returns the files that contain an endpoint, the most trustworthy first.
func trusted(list []found) []*found {
	var order []*found
	for i := range list {
		if list[i].ep != nil {
			order = append(order, &list[i])
		}
	}
	slices.SortStableFunc(order, byTrust)
	return order
}
