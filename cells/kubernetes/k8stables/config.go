package k8stables

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/reflectors"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// Config configures the source of Kubernetes objects: the manifests, the wait for the first lists, and the copy on disk.
type Config struct {
	Dir    string        `mapstructure:"manifests-dir"`
	Reread time.Duration `mapstructure:"manifests-resync-interval"`

	SyncTimeout  time.Duration `mapstructure:"k8s-sync-timeout"`
	LibDir       string        `mapstructure:"lib-dir"`
	Snapshot     bool          `mapstructure:"k8s-snapshot"`
	SnapshotWait time.Duration `mapstructure:"k8s-snapshot-interval"`
	Slices       bool          `mapstructure:"enable-cilium-endpoint-slice"`
}

// DefaultConfig reads all manifests again every 30 s, because the watch covers only the directory and the target of a link may change outside of it.
var DefaultConfig = Config{
	Reread:       30 * time.Second,
	SyncTimeout:  3 * time.Minute,
	LibDir:       "/var/lib/waggle",
	Snapshot:     true,
	SnapshotWait: 30 * time.Second,
}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("manifests-dir", c.Dir,
		"Directory of YAML and JSON files with Kubernetes objects (default <state-dir>/manifests)")
	flags.Duration("manifests-resync-interval", c.Reread, "Interval at which all manifests are read again, even without a notification of the watch")
	flags.Duration("k8s-sync-timeout", c.SyncTimeout,
		"Timeout of the API server's first lists; then an agent with neither a copy nor pods of a previous run stops; 0 waits forever")
	flags.String("lib-dir", c.LibDir, "Directory for files that survive a restart of the machine")
	flags.Bool("k8s-snapshot", c.Snapshot, "Keep a copy of Kubernetes objects in <lib-dir>/k8s-snapshot, to start without the API server")
	flags.Duration("k8s-snapshot-interval", c.SnapshotWait, "Minimum time between two writes of that copy")
	flags.Bool("enable-cilium-endpoint-slice", c.Slices,
		"Write CiliumEndpointSlices in the cluster role, and read them instead of the CiliumEndpoints of other nodes once they are complete")
}

// settings is the checked form of [Config].
type settings struct {
	dir        string // absolute; need not exist
	reread     time.Duration
	nodeName   string
	reflectors reflectors.Settings
}

const minReread = 50 * time.Millisecond

func newSettings(c Config, a agentconfig.Agent, client *kubeapi.Client) (settings, error) {
	if client != nil && c.Dir != "" {
		return settings{}, fmt.Errorf("--manifests-dir=%q and --k8s-api-server, --k8s-kubeconfig-path or an account inside the "+
			"cluster: only one source of objects is possible; to read manifests, set --enable-k8s=false", c.Dir)
	}
	if c.Dir == "" {
		c.Dir = filepath.Join(a.StateDir, "manifests")
	}
	for _, d := range []struct{ flag, path string }{{"manifests-dir", c.Dir}, {"lib-dir", c.LibDir}} {
		if !filepath.IsAbs(d.path) {
			return settings{}, fmt.Errorf("--%s=%q: must be an absolute path", d.flag, d.path)
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
		least time.Duration
	}{{"manifests-resync-interval", c.Reread, minReread}, {"k8s-snapshot-interval", c.SnapshotWait, minReread},
		{"k8s-sync-timeout", c.SyncTimeout, 0}} {
		if d.value < d.least {
			return settings{}, fmt.Errorf("--%s=%v: must be at least %v", d.flag, d.value, d.least)
		}
	}
	r := reflectors.Settings{NodeName: a.NodeName, SyncTimeout: c.SyncTimeout, CopyEvery: c.SnapshotWait, Slices: c.Slices}
	if c.Snapshot {
		r.Copy = filepath.Join(c.LibDir, "k8s-snapshot")
	}
	return settings{filepath.Clean(c.Dir), c.Reread, a.NodeName, r}, nil
}
