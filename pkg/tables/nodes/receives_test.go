package nodes

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseReceives_ReadsTextOfAgents(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Receives{
		"direct":                      {Known: true, Direct: true},
		"vxlan:8472:ipv4+ipv6":        {Known: true, Port: 8472, IPv4: true, IPv6: true},
		"direct,vxlan:4789:ipv6":      {Known: true, Direct: true, Port: 4789, IPv6: true},
		"geneve:6081:ipv4,direct,x:y": {Known: true, Direct: true},
		"":                            {},
		"geneve:6081:ipv4":            {},
		"vxlan":                       {},
		"vxlan:0:ipv4":                {},
		"vxlan:65536:ipv4":            {},
		"vxlan:8472":                  {Known: true, Port: 8472},
		"vxlan:8472:ipv5":             {Known: true, Port: 8472},
	} {
		require.Equal(t, want, ParseReceives(text), text)
	}
}

func FuzzParseReceives_RoundTrip(f *testing.F) {
	f.Add("direct,vxlan:8472:ipv4+ipv6")
	f.Add("vxlan:8472:,vxlan:1:ipv6")
	f.Fuzz(func(t *testing.T, text string) {
		r := ParseReceives(text)
		require.Equal(t, r, ParseReceives(r.String()), text)
	})
}

func TestReceives_Tunnel_NeedsPortAndFamily(t *testing.T) {
	t.Parallel()
	r := ParseReceives("vxlan:8472:ipv4")
	require.True(t, r.Tunnel(8472, false))
	require.False(t, r.Tunnel(8472, true))
	require.False(t, r.Tunnel(8473, false))
	require.False(t, Receives{}.Tunnel(0, false))
}
