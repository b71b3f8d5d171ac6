package dissect

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

// packet decodes the concatenation of hexadecimal parts.
func packet(t testing.TB, parts ...string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(strings.Join(parts, ""), " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	macs  = "020000000001 020000000002"
	v4    = macs + "0800 45000028 00004000 40%P 0000 0a010007 0a010008"
	v6    = macs + "86dd 60000000 0014%P 40 fd000000000000000000000000000007 fd000000000000000000000000000008"
	ports = "1f90 0050"
)

func TestEthernet(t *testing.T) {
	t.Parallel()
	a4, b4 := netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("10.1.0.8")
	a6, b6 := netip.MustParseAddr("fd00::7"), netip.MustParseAddr("fd00::8")
	with := func(head, proto string) string { return strings.ReplaceAll(head, "%P", proto) }
	for name, tc := range map[string]struct {
		in   string
		want Summary
	}{
		"empty":                {"", Summary{}},
		"unknown type":         {macs + "88cc 00", Summary{Proto: "ethertype-0x88cc"}},
		"ARP":                  {macs + "0806 0001 0800 06 04 0001 020000000001 0a010007 000000000000 0a010008", Summary{Proto: "ARP", Src: a4, Dst: b4}},
		"TCP":                  {with(v4, "06") + ports, Summary{"TCP", a4, b4, 8080, 80, 6, 0}},
		"UDP cut before ports": {with(v4, "11") + "1f", Summary{"UDP", a4, b4, 0, 0, 17, 0}},
		"later fragment":       {strings.Replace(with(v4, "11")+ports, "00004000", "00000064", 1), Summary{"UDP", a4, b4, 0, 0, 17, 0}},
		"ICMP":                 {with(v4, "01") + "0800 0000", Summary{"ICMPv4", a4, b4, 0, 0, 1, 8}},
		"other protocol":       {with(v4, "2f"), Summary{"protocol-47", a4, b4, 0, 0, 47, 0}},
		"IPv4 cut short":       {macs + "0800 4500", Summary{Proto: "IPv4"}},
		"IPv6 UDP":             {with(v6, "11") + ports + "00000000", Summary{"UDP", a6, b6, 8080, 80, 17, 0}},
		"IPv6 with a hop-by-hop header": {with(v6, "00") + "3a00 010400000000" + "8000 0000 0000 0000",
			Summary{"ICMPv6", a6, b6, 0, 0, 58, 128}},
		"IPv6 later fragment": {with(v6, "2c") + "0600 0008 00000001" + ports + "00000000", Summary{"TCP", a6, b6, 0, 0, 6, 0}},
		"IPv6 first fragment": {with(v6, "2c") + "0600 0001 00000001" + ports + "00000000", Summary{"TCP", a6, b6, 8080, 80, 6, 0}},
		"after a VLAN tag":    {strings.Replace(with(v4, "06")+ports, "0800", "8100 0005 0800", 1), Summary{"TCP", a4, b4, 8080, 80, 6, 0}},
	} {
		if got := Ethernet(packet(t, tc.in)); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

func FuzzEthernet(f *testing.F) {
	f.Add(packet(f, strings.ReplaceAll(v6, "%P", "00")+"3c00010400000000"))
	f.Add(packet(f, strings.ReplaceAll(v4, "%P", "06")+ports))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := Ethernet(b)
		if (s.SrcPort != 0 || s.DstPort != 0) && !s.Src.IsValid() {
			t.Fatalf("ports without addresses: %+v", s)
		}
		if len(b) >= 14 && s.Proto == "" {
			t.Fatalf("a packet of %d bytes has no protocol", len(b))
		}
	})
}
