package ctgc

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
)

// fakeNat implements natKernel.
type fakeNat struct{ *fakeKernel }

type fakeNatReader struct {
	flows   []natmap.Flow
	reading func()
}

func (r *fakeNatReader) Next() ([]natmap.Flow, bool, error) {
	if r.reading != nil {
		r.reading()
	}
	n := min(fakeSlice, len(r.flows))
	out := r.flows[:n]
	r.flows = r.flows[n:]
	return out, len(r.flows) == 0, nil
}

func (r *fakeNatReader) Close() {}

func (f fakeNat) ReadNat(m natmap.Map) (natReader, uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &fakeNatReader{reading: f.reading}
	for _, flow := range f.nat {
		if flow.Key.IPv6 == m.IPv6 {
			r.flows = append(r.flows, flow)
		}
	}
	if m.IPv6 && f.failing["read-nat6"] {
		return nil, 0, f.fails("read-nat6")
	}
	return r, f.natCapacity, f.fails("read-nat")
}

func (f fakeNat) LookupNat(key *natmap.Key) (natmap.Flow, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	flow, found := f.nat[*key]
	return flow, found, f.fails("lookup-nat")
}

func (f fakeNat) DeleteNat(key *natmap.Key, dead func(*natmap.Flow) bool) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails("delete-nat"); err != nil {
		return false, err
	}
	flow, found := f.nat[*key]
	if f.prolong {
		flow.Expires = f.now + 100
		f.nat[*key] = flow
	}
	if !found || !dead(&flow) {
		return false, nil
	}
	delete(f.nat, *key)
	return true, nil
}

func (f fakeNat) NatCounts() ([]bpf.NatCount, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.natCounts), f.fails("nat-counts")
}

func (f fakeNat) SetNatCount(id uint16, n bpf.NatCount) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.natCounts[id] = n
	return f.fails("set-nat-count")
}

func (f fakeNat) NatTotals() ([]bpf.NatCount, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.natTotals[:]), f.fails("nat-totals")
}

func (f fakeNat) SetNatTotal(slot uint32, n bpf.NatCount) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.natTotals[slot] = n
	return f.fails("set-nat-total")
}

func (f fakeNat) Affinities() (all []affinity, capacity uint32, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, entry := range f.kept {
		all = append(all, affinity{key, entry})
	}
	return all, 10, f.fails("affinities")
}

func (f fakeNat) DeleteAffinity(key bpf.AffinityKey, dead func(bpf.AffinityEntry) bool) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	entry, found := f.kept[key]
	if !found || !dead(entry) {
		return false, nil
	}
	delete(f.kept, key)
	return true, nil
}

// putPair stores both entries of a flow, or only the first.
func (f *fakeKernel) putPair(args []string) (string, error) {
	protocol := map[string]uint8{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP}[args[0]]
	places := map[string]bpf.NatPlace{}
	for p := bpf.NatFromPod; p <= bpf.NatToOutside; p++ {
		places[natmap.Place(p)] = p
	}
	var ends [4]netip.AddrPort
	for i := range ends {
		var err error
		if ends[i], err = netip.ParseAddrPort(args[2+i]); err != nil {
			return "", err
		}
	}
	flow := natmap.Flow{Key: natmap.KeyOf(natmap.Tuple{Source: ends[0], Destination: ends[1], Protocol: protocol, Place: places[args[1]]}),
		Reverse: natmap.KeyOf(natmap.Tuple{Source: ends[3], Destination: ends[2], Protocol: protocol, Place: places[args[6]]}),
		Expires: f.now + 100}
	left, single := uint64(100), false
	for _, field := range args[7:] {
		name, text, _ := strings.Cut(field, "=")
		switch name {
		case "single":
			single = true
			continue
		case "stands":
			flow.Flags |= uint32(bpf.NatSenderEstablished)
			continue
		}
		v, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return "", err
		}
		switch name {
		case "left":
			flow.Expires = f.now + uint32(v)
			left = v
		case "replies-left":
			left = v
		case "service":
			flow.Service, flow.Flags = uint32(v), uint32(bpf.NatService)
		case "backend":
			flow.Backend = uint32(v)
		case "endpoint":
			flow.Endpoint = uint32(v)
		case "masquerade":
			flow.Flags = uint32(bpf.NatMasquerade)
		case "redirect":
			flow.Flags = uint32(bpf.NatService | bpf.NatRedirect)
		case "node":
			flow.Flags = uint32(bpf.NatNode)
		default:
			return "", fmt.Errorf("%s: no such field", name)
		}
	}
	f.nat[flow.Key] = flow
	if !single {
		reverse := flow
		reverse.Key, reverse.Reverse = flow.Reverse, flow.Key
		reverse.Flags |= uint32(bpf.NatReply)
		reverse.Expires = f.now + uint32(left)
		f.nat[reverse.Key] = reverse
	}
	return "", nil
}

func (f *fakeKernel) listPairs() string {
	var lines []string
	for _, flow := range f.nat {
		from, to := flow.Key.Tuple(), flow.Becomes()
		lines = append(lines, fmt.Sprintf("%s %s>%s becomes %s>%s\n", natmap.Place(from.Place), from.Source, from.Destination, to.Source, to.Destination))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (f *fakeKernel) keep(args []string) (string, error) {
	addr, err1 := netip.ParseAddr(args[0])
	service, err2 := strconv.ParseUint(args[1], 10, 32)
	backend, err3 := strconv.ParseUint(args[2], 10, 32)
	ago, err4 := strconv.ParseUint(args[3], 10, 32)
	key := bpf.AffinityKey{Service: uint32(service), Kind: 4}
	copy(key.Client[:], addr.AsSlice())
	f.kept[key] = bpf.AffinityEntry{Backend: uint32(backend), Used: f.now - uint32(ago)}
	return "", errors.Join(err1, err2, err3, err4)
}

func (f *fakeKernel) listAffinity() string {
	var lines []string
	for key, entry := range f.kept {
		addr := netip.AddrFrom4([4]byte(key.Client[:4]))
		lines = append(lines, fmt.Sprintf("%s service %d backend %d\n", addr, key.Service, entry.Backend))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
