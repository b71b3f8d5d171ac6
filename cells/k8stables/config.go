package k8stables

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	agent "github.com/waggle-net/waggle/pkg/settings"
)

// Config is what was typed.
type Config struct {
	Dir    string        `mapstructure:"manifests-dir"`
	Reread time.Duration `mapstructure:"manifests-resync-interval"`
}

// DefaultConfig are the defaults. Every file is read again now and then because a watch sees only the directory: a
// file that is a link may change elsewhere.
var DefaultConfig = Config{Reread: 30 * time.Second}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("manifests-dir", c.Dir,
		"Directory of YAML and JSON files with Kubernetes objects (default <state-dir>/manifests)")
	flags.Duration("manifests-resync-interval", c.Reread, "How often all manifests are read again, whatever the watch says")
}

// settings is the checked form of [Config].
type settings struct {
	dir      string // absolute; need not exist
	reread   time.Duration
	nodeName string
}

const minReread = 50 * time.Millisecond

func newSettings(c Config, a agent.Agent) (settings, error) {
	if c.Dir == "" {
		c.Dir = filepath.Join(a.StateDir, "manifests")
	}
	if !filepath.IsAbs(c.Dir) {
		return settings{}, fmt.Errorf("--manifests-dir=%q: must be an absolute path", c.Dir)
	}
	if c.Reread < minReread {
		return settings{}, fmt.Errorf("--manifests-resync-interval=%v: must be at least %v", c.Reread, minReread)
	}
	return settings{filepath.Clean(c.Dir), c.Reread, a.NodeName}, nil
}
