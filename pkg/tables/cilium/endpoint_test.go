package cilium

import (
	"encoding/json"
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// TestEndpoint_Size checks that a row takes one allocation beside its text. There may be 150,000 rows.
func TestEndpoint_Size(t *testing.T) {
	if size := unsafe.Sizeof(Endpoint{}); size > 48 {
		t.Errorf("a row has %d bytes, which is more than the size class of 48", size)
	}
	f := EndpointFields{Namespace: "default", Name: "web-6d4cf56db6-x2vlq", UID: "5a1ef0de-0001-4000-8000-000000000001", Node: netip.MustParseAddr("192.0.2.1"),
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")}, Host: "a", Ports: []k8s.ContainerPort{{Name: "web", Protocol: "TCP", Number: 80}}}
	first := NewEndpoint(f)
	if n := testing.AllocsPerRun(100, func() { f.Created++; NewEndpoint(f) }); n > 2 {
		t.Errorf("a row takes %v allocations", n)
	}
	if first.Node() != f.Node {
		t.Errorf("the node is %s", first.Node())
	}
}

// TestReplaces_TextIsShared checks that a new row of the same object shares the text of the previous row, which the tree of the table keeps.
func TestReplaces_TextIsShared(t *testing.T) {
	t.Parallel()
	row := func(uid string) *Endpoint { return NewEndpoint(EndpointFields{Namespace: "a", Name: "b", UID: uid}) }
	old, same, other := row("1"), row("1"), row("2")
	same.Replaces(old)
	other.Replaces(old)
	if unsafe.StringData(same.text) != unsafe.StringData(old.text) || other.UID() != "2" {
		t.Errorf("%+v and %+v do not replace %+v", same, other, old)
	}
}

// TestEndpoint_Limits checks values at and beyond the limits of the packed fields.
func TestEndpoint_Limits(t *testing.T) {
	t.Parallel()
	seen := map[int64]*Endpoint{}
	for _, created := range []int64{math.MinInt64, -1, 0, 1, math.MaxUint32, math.MaxUint32 + 1, 1 << 32 * 5, math.MaxInt64} {
		e := NewEndpoint(EndpointFields{Namespace: "a", Name: "b", Created: created})
		if e.Created() != created || e.Fields().Created != created {
			t.Errorf("created is %d, want %d", e.Created(), created)
		}
		for other, o := range seen {
			if e.Equal(o) || o.Equal(e) {
				t.Errorf("a row created at %d equals a row created at %d", created, other)
			}
		}
		if !e.Equal(NewEndpoint(e.Fields())) {
			t.Errorf("a row created at %d does not equal its copy", created)
		}
		seen[created] = e
	}
	long := func(n int) string {
		return `{"namespace":"a","name":"` + strings.Repeat("b", n-len("a/")) + `","addrs":["fd00::7","10.0.0.7"]}`
	}
	var e Endpoint
	if err := json.Unmarshal([]byte(long(16383)), &e); err != nil || e.Namespace() != "a" || len(e.Name()) != 16381 || e.UID() != "" || e.NumAddrs() != 2 ||
		e.Addr(0) != netip.MustParseAddr("fd00::7") {
		t.Errorf("the longest name: have %d bytes of name and the addresses %v (%v)", len(e.Name()), e.Addrs(), err)
	}
	if err := json.Unmarshal([]byte(long(16384)), &e); !errors.Is(err, errLongName) {
		t.Errorf("a longer name: %v", err)
	}
}

// FuzzEndpoint checks that a row returns the fields it was created from, also after JSON and YAML. Shells, scripts and the copy on disk use these
// forms.
func FuzzEndpoint(f *testing.F) {
	f.Add("default", "web", "5a1ef0de-0001-4000-8000-000000000001", "10.0.0.7,fd00::7", "192.0.2.1", "a", "web", int64(5), uint64(0))
	f.Add("", "", "", "fd00::7,10.0.0.7", "", "", "", int64(-1), uint64(7))
	f.Add("a/b", "c", "5A1EF0DE-0001-4000-8000-000000000001", "10.0.0.7,10.0.0.7,::ffff:10.0.0.7,fe80::1%eth0", "::1", "a", "a", int64(0), uint64(0))
	f.Fuzz(func(t *testing.T, namespace, name, uid, addrs, node, host, port string, created int64, written uint64) {
		all := []*string{&namespace, &name, &uid, &host, &port}
		for _, text := range all {
			if *text = strings.ToValidUTF8(*text, ""); !celltest.YAMLRoundTrips(*text) {
				return
			}
		}
		want := EndpointFields{Namespace: namespace, Name: name, UID: uid, Created: created, Identity: uint32(created), Host: host, Written: written}
		want.Node, _ = netip.ParseAddr(node)
		for text := range strings.SplitSeq(addrs, ",") {
			if addr, err := netip.ParseAddr(text); err == nil && celltest.YAMLRoundTrips(addr.Zone()) {
				want.Addrs = append(want.Addrs, addr)
			}
		}
		for n := range uint16(len(port) % 4) {
			want.Ports = append(want.Ports, k8s.ContainerPort{Name: port, Protocol: "TCP", Number: n})
		}
		same := func(what string, row *Endpoint) {
			t.Helper()
			if d := cmp.Diff(want, row.Fields(), cmpopts.EquateComparable(netip.Addr{})); d != "" {
				t.Errorf("%s: %s", what, d)
			}
			if row.Key() != namespace+"/"+name || !row.Equal(NewEndpoint(want)) {
				t.Errorf("%s: %q is not equal to itself", what, row.Key())
			}
			for i, addr := range want.Addrs {
				if row.Addr(i) != addr || !row.Has(addr) {
					t.Errorf("%s: address %d is %s, want %s", what, i, row.Addr(i), addr)
				}
			}
		}
		row := NewEndpoint(want)
		same("made", row)
		text, err := json.Marshal(row)
		plain, err2 := json.Marshal(want)
		if err != nil || err2 != nil || string(text) != string(plain) {
			t.Fatalf("JSON is %s (%v), want %s (%v)", text, err, plain, err2)
		}
		back := new(Endpoint)
		if err := json.Unmarshal(text, back); err != nil {
			t.Fatal(err)
		}
		same("JSON", back)
		if text, err = yaml.Marshal(row); err != nil {
			t.Fatal(err)
		}
		back = new(Endpoint)
		if err := yaml.Unmarshal(text, back); err != nil {
			t.Fatal(err)
		}
		if len(want.Addrs) == 0 { // YAML does not distinguish an empty list from none
			want.Addrs = back.Fields().Addrs
		}
		if len(want.Ports) == 0 {
			want.Ports = back.Fields().Ports
		}
		same("YAML", back)
	})
}

// TestEndpoint_LongName_IsRejected checks that a name longer than any name of an API server is an error and is not truncated.
func TestEndpoint_LongName_IsRejected(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(EndpointFields{Namespace: "a", Name: strings.Repeat("b", 1<<16)})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, new(Endpoint)); err == nil {
		t.Error("it is read")
	}
}
