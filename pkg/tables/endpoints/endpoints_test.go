package endpoints

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

func full() *Endpoint {
	return &Endpoint{
		ID: 7, ContainerID: "abc", IfName: "eth0", NetnsPath: "/run/netns/x", NetnsCookie: 1 << 63, NetnsInode: 9,
		HostIfName: "lxc0123456789ab", HostIfIndex: 12, HostMAC: mac.Addr{2, 1}, PodMAC: mac.Addr{2, 2},
		IPv4: netip.MustParseAddr("10.0.0.7"), IPv6: netip.MustParseAddr("fd00::7"), IPv4Pool: "p4", IPv6Pool: "p6",
		GatewayIPv4: netip.MustParseAddr("10.0.0.1"), GatewayIPv6: netip.MustParseAddr("fd00::1"),
		K8sNamespace: "default", K8sPodName: "web", K8sUID: "u", Labels: map[string]string{"k8s:app": "web"}, LabelsMissing: "why",
		CreatedAt: time.Unix(1, 5).UTC(), Restored: true, Quarantine: "why", Serial: 3, NetnsDir: "1:2", Boot: "b", Doubt: "why",
		Ports: []k8s.ContainerPort{{Name: "web", Protocol: "TCP", Number: 80}},
	}
}

// TestEqual_ComparesEveryField checks that Equal compares every field: a forgotten field would never reach the datapath.
func TestEqual_ComparesEveryField(t *testing.T) {
	t.Parallel()
	require.True(t, full().Equal(full()))
	for i := range reflect.TypeFor[Endpoint]().NumField() {
		changed := full()
		field := reflect.ValueOf(changed).Elem().Field(i)
		require.False(t, field.IsZero(), "full must set %s", reflect.TypeFor[Endpoint]().Field(i).Name)
		field.SetZero()
		require.False(t, full().Equal(changed), reflect.TypeFor[Endpoint]().Field(i).Name)
	}
}

// TestCompareAge_SerialThenClock: clocks jump, serials do not. Files of the first version have no serial.
func TestCompareAge_SerialThenClock(t *testing.T) {
	t.Parallel()
	at := func(serial uint64, second int64, id uint16) *Endpoint {
		return &Endpoint{ID: id, Serial: serial, CreatedAt: time.Unix(second, 0)}
	}
	require.Negative(t, CompareAge(at(1, 100, 9), at(2, 50, 1)), "the clock was set back in between")
	require.Negative(t, CompareAge(at(0, 100, 1), at(1, 50, 2)), "without a serial it is of the first version")
	require.Negative(t, CompareAge(at(0, 1, 9), at(0, 2, 1)))
	require.Zero(t, CompareAge(at(1, 1, 1), at(1, 1, 1)))
}

func FuzzRowSurvivesJSONAndYAML(f *testing.F) {
	f.Add(uint16(7), "abc", "web", "k8s:app", "x", []byte{10, 0, 0, 7})
	f.Add(uint16(0), "", "\x1b[31m", "a: b\n- c", "\"", []byte(nil))
	f.Fuzz(func(t *testing.T, id uint16, container, pod, key, value string, addr []byte) {
		in := full()
		a, _ := netip.AddrFromSlice(addr)
		in.ID, in.ContainerID, in.K8sPodName, in.IPv4, in.Labels = id, container, pod, a, map[string]string{key: value}
		for _, s := range []string{container, pod, key, value} {
			if !printable(s) {
				return // rows hold printable text only
			}
		}
		text, err := json.Marshal(in)
		require.NoError(t, err)
		out := new(Endpoint)
		require.NoError(t, json.Unmarshal(text, out))
		require.True(t, in.Equal(out), "%s", text)
		text, err = yaml.Marshal(in)
		require.NoError(t, err)
		out = new(Endpoint)
		require.NoError(t, yaml.Unmarshal(text, out))
		require.True(t, in.Equal(out), "%s", text)
	})
}

func printable(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
