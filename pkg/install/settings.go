package install

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/config"
)

// flagList has one line for each flag of the agent in either role, with its type and its default. The tool tools/reference generates it.
//
//go:embed flags.txt
var flagList string

// Settings are the options of the ConfigMap, by key.
type Settings map[string]string

// Defaults are the options that differ from the agent's defaults, because a cluster determines them. Most clusters assign only IPv4 CIDRs to nodes, and
// an agent waits for a CIDR of each enabled family.
func Defaults() Settings {
	return Settings{
		"enable-ipv4":               "true",
		"enable-ipv6":               "false",
		"ipam":                      "kubernetes",
		"write-cni-conf-when-ready": "/etc/cni/net.d/05-waggle.conflist",
	}
}

// fixed are options whose values the manifests depend on.
var fixed = map[string]string{
	"config-dir":                "the manifests set the mount point of the ConfigMap",
	"procfs":                    "the manifests set the mount point of the writable part of procfs",
	"node-name":                 "each agent uses the name of its own node",
	"bpf-root":                  "the manifests mount it at the default path",
	"role":                      "the manifests start both roles",
	"lib-dir":                   "the manifests mount it at the default path",
	"leader-election-namespace": "the Lease is in the namespace of --namespace, and so is the Role for it",
	"state-dir":                 "the manifests mount it at the default path",
}

// newSettings applies the options of the command line, key=value, to the defaults. It reports all mistakes at once.
func newSettings(set []string, apiServer string) (Settings, error) {
	settings := Defaults()
	var errs []error
	for _, pair := range set {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("--set %q: want key=value", pair))
			continue
		}
		if why, ours := fixed[key]; ours {
			errs = append(errs, fmt.Errorf("--set %s: cannot be set here: %s", key, why))
			continue
		}
		settings[key] = value
	}
	if apiServer != "" {
		settings["k8s-api-server"] = apiServer
	}
	flags, err := AgentFlags()
	if err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if err := config.FlagError(flags, flags.Parse([]string{"--" + key + "=" + settings[key]})); err != nil {
			errs = append(errs, fmt.Errorf("--set: %w", err))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, checkTogether(flags))
	}
	return settings, errors.Join(errs...)
}

// checkTogether runs the agent's own check of the settings that all its parts share.
func checkTogether(flags *pflag.FlagSet) error {
	f := agentconfig.DefaultFlags
	f.NodeName = "any"
	for name, into := range map[string]any{
		"enable-ipv4": &f.EnableIPv4, "enable-ipv6": &f.EnableIPv6, "state-dir": &f.StateDir, "bpf-root": &f.BPFRoot, "procfs": &f.Procfs,
		"cluster-name": &f.Cluster, "ipam": &f.IPAM, "node-port-range": &f.NodePortRange, "bpf-lb-algorithm": &f.Algorithm,
		"bpf-lb-maglev-table-size": &f.MaglevTableSize,
	} {
		if !flags.Changed(name) {
			continue
		}
		var err error
		switch into := into.(type) {
		case *bool:
			*into, err = flags.GetBool(name)
		case *int:
			*into, err = flags.GetInt(name)
		case *[]string:
			*into, err = flags.GetStringSlice(name)
		case *string:
			*into = flags.Lookup(name).Value.String()
		}
		if err != nil {
			return fmt.Errorf("--set %s: %w", name, err)
		}
	}
	if _, err := agentconfig.New(f); err != nil {
		return fmt.Errorf("--set: %w", err)
	}
	return nil
}

// AgentFlags returns the flags of the agent in either role. Flags of type string have their defaults.
func AgentFlags() (*pflag.FlagSet, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	for line := range strings.Lines(flagList) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "#") || len(fields) < 2 {
			continue
		}
		if err := addFlag(flags, fields[0], fields[1]); err != nil {
			return nil, err
		}
		if flag := flags.Lookup(fields[0]); len(fields) == 3 && fields[1] == "string" {
			_ = flag.Value.Set(fields[2]) // any text is a valid string
			flag.DefValue = fields[2]
		}
	}
	return flags, nil
}

func addFlag(flags *pflag.FlagSet, name, kind string) error {
	switch kind {
	case "bool":
		flags.Bool(name, false, "")
	case "int":
		flags.Int(name, 0, "")
	case "duration":
		flags.Duration(name, time.Duration(0), "")
	case "float32", "float64":
		flags.Float64(name, 0, "")
	case "string":
		flags.String(name, "", "")
	case "stringSlice":
		flags.StringSlice(name, nil, "")
	case "stringToString":
		flags.StringToString(name, nil, "")
	default:
		return fmt.Errorf("flag %s of the agent has the unknown type %s: add the type to package install", name, kind)
	}
	return nil
}

// value returns the effective value of a flag: the option, otherwise the agent's default.
func (s Settings) value(flag string) string {
	if value, ok := s[flag]; ok {
		return value
	}
	for line := range strings.Lines(flagList) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == flag {
			return fields[2]
		}
	}
	return ""
}

// healthPort returns the port of probes; 0 if they are off.
func (s Settings) healthPort() (int, error) {
	const flag = "agent-health-port"
	port, err := strconv.Atoi(s.value(flag))
	if err != nil || port < 0 || port > 65535 {
		return 0, fmt.Errorf("--set %s=%s: use 1 to 65535, or 0 for none", flag, s.value(flag))
	}
	return port, nil
}

// hostPort is the address of the cluster role's probes; without a port they are off.
type hostPort struct{ Host, Port string }

func (s Settings) clusterProbes() (at hostPort, err error) {
	const flag = "operator-api-serve-addr"
	value := s.value(flag)
	if value == "" {
		return at, nil
	}
	if at.Host, at.Port, err = net.SplitHostPort(value); err == nil {
		_, err = strconv.ParseUint(at.Port, 10, 16)
	}
	if err != nil {
		return at, fmt.Errorf("--set %s=%s: want host:port, or nothing for none", flag, value)
	}
	if addr, err := netip.ParseAddr(at.Host); at.Host == "" || err == nil && addr.IsUnspecified() {
		at.Host = "127.0.0.1"
	}
	return at, nil
}
