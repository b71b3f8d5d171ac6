package linkreaper

import (
	"fmt"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestPrivilegedKernel_GroupIsDeletedInOneRequest(t *testing.T) {
	t.Parallel()
	k := &netlinkKernel{}
	testnet.New(t).Do(func() {
		if err := k.open(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(k.close)
	for i := range 6 {
		group := podlink.DeletedGroup
		if i == 0 {
			group = podlink.Group
		}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: podlink.HostName("c", "eth0", i), Group: group}, PeerName: fmt.Sprintf("peer%d", i)}
		if err := k.handle.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		link, err := k.handle.LinkByName(veth.Name)
		if err == nil {
			err = k.handle.LinkSetGroup(link, int(group))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	members, err := k.Members(podlink.DeletedGroup)
	if err != nil || len(members) != 5 {
		t.Fatalf("the group has %v, error %v; want 5 links", members, err)
	}
	last := members[4].Index
	one, err := k.Member(podlink.DeletedGroup, last)
	if err != nil || !slices.Equal(one, members[4:]) {
		t.Fatalf("link %d alone is %v, error %v; want %v", last, one, err, members[4:])
	}
	if one, err = k.Member(podlink.Group, last); err != nil || len(one) != 0 {
		t.Fatalf("link %d is %v of another group, error %v", last, one, err)
	}
	if n, err := (&reaper{kernel: k}).reap([]int{1, 2}); err != nil || n != 5 {
		t.Fatalf("deleted %d, error %v; want 5", n, err)
	}
	if members, err = k.Members(podlink.DeletedGroup); err != nil || len(members) != 0 {
		t.Fatalf("left over: %v, error %v", members, err)
	}
	if members, err = k.Member(podlink.DeletedGroup, last); err != nil || len(members) != 0 {
		t.Fatalf("a link that is gone is left over: %v, error %v", members, err)
	}
	if members, err = k.Members(podlink.Group); err != nil || len(members) != 1 {
		t.Fatalf("the link of a living pod is gone: %v, error %v", members, err)
	}
	for _, again := range []error{k.DeleteGroup(podlink.DeletedGroup), k.DeleteLink(4242)} {
		if again != nil {
			t.Fatalf("what is gone is an error: %v", again)
		}
	}
}
