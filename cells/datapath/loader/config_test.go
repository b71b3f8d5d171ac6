package loader

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// Every constant of the programs is set from the configuration: a missing one would keep its default.
func TestPrivilegedConstants_AllAreSet(t *testing.T) {
	testnet.RequirePrivileges(t)
	config := Config{TCPTimeout: time.Hour, TCPSynTimeout: 30 * time.Second, TCPCloseTimeout: 3 * time.Second, AnyTimeout: 20 * time.Second,
		Verdicts: false, LoopbackIPv4: "169.254.43.1", LoopbackIPv6: "fd00:43::1"}
	procfs := t.TempDir()
	setting := filepath.Join(procfs, "sys", "net", "ipv4", "ip_local_port_range")
	require.NoError(t, os.MkdirAll(filepath.Dir(setting), 0o755))
	require.NoError(t, os.WriteFile(setting, []byte("20000\t30000\n"), 0o644))
	o := &objects{agent: agentconfig.Agent{EnableIPv4: true, EnableIPv6: true, EndpointShare: 50, TunnelPort: 8472, Hybrid: true, Procfs: procfs}, config: config, options: policy.Options{CIDRMatchesNodes: true}, sockets: socketlboptions.Options{HostOnly: true},
		probe: func() bpf.EncapSupport { return bpf.EncapSupport{Modes: bpf.EncapSends} }}
	maps := newMemoryMaps(t, map[string]uint32{bpf.MapCtEst4: 32768, bpf.MapCtNew4: 8192, bpf.MapNat4: 65536, bpf.MapNat6: 32768})
	maps[bpf.PreviousName(bpf.MapCtEst4)] = maps[bpf.MapCtNew4] // a different map, as during a change of size
	require.NoError(t, maps.Put(bpf.MapResizeState, uint32(0), bpf.ResizeState(3, bpf.ResizeBefore)))
	got := o.constants(maps)
	require.Equal(t, uint32(16384), got[bpf.VariableCtShare])
	require.Equal(t, uint32(32), got[bpf.VariableCtGuarantee])
	require.Equal(t, uint32(32768-256*32), got[bpf.VariableCtBeyond])
	nat4, nat6 := maps[bpf.MapNat4].MaxEntries()/2, maps[bpf.MapNat6].MaxEntries()/2
	require.Equal(t, [4]uint32{nat4 / 2, nat4 / 2, nat6 / 2, nat6 / 2}, o.natShares(maps))
	require.Equal(t, bpf.CtTicks(time.Hour), got[bpf.VariableCtTCPTimeout])
	for _, program := range bpf.Objects() {
		before, err := bpf.Load(program)
		require.NoError(t, err)
		after, err := bpf.Load(program)
		require.NoError(t, err)
		require.NoError(t, o.configure(after, maps))
		require.NoError(t, configureResize(after, maps))
		for name, variable := range before.Variables {
			if !variable.Constant() {
				continue // programs write it
			}
			switch name {
			case bpf.VariableNatPortLast, bpf.VariableRejectRate, bpf.VariableFastPath: // only tests of the programs change them
				continue
			case bpf.VariableLinkHeader: // bpf.Load sets it
				continue
			}
			was, is := make([]byte, variable.Size()), make([]byte, after.Variables[name].Size())
			require.NoError(t, variable.Get(was))
			require.NoError(t, after.Variables[name].Get(is))
			require.NotEqual(t, was, is, "%s of %s", name, program)
		}
	}
}

func TestConfig_InvalidValue_NamesFlag(t *testing.T) {
	t.Parallel()
	require.NoError(t, DefaultConfig.check())
	for flag, change := range map[string]func(*Config){
		"--bpf-ct-timeout-regular-tcp=1s":         func(c *Config) { c.TCPTimeout = time.Second },
		"--bpf-ct-timeout-regular-tcp-syn=0s":     func(c *Config) { c.TCPSynTimeout = 0 },
		"--bpf-ct-timeout-regular-tcp-fin=-1s":    func(c *Config) { c.TCPCloseTimeout = -time.Second },
		"--bpf-ct-timeout-regular-any=1000h":      func(c *Config) { c.AnyTimeout = 1000 * time.Hour },
		"--ipv4-service-loopback-address=fd00::1": func(c *Config) { c.LoopbackIPv4 = "fd00::1" },
		"--ipv6-service-loopback-address=":        func(c *Config) { c.LoopbackIPv6 = "" },
	} {
		c := DefaultConfig
		change(&c)
		require.ErrorContains(t, c.check(), flag)
	}
}
