package cniconf

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"
)

// Config configures the path and the contents of the CNI configuration list.
type Config struct {
	WriteCNIConfWhenReady string `mapstructure:"write-cni-conf-when-ready"`
	ReadCNIConf           string `mapstructure:"read-cni-conf"`
	CNIExclusive          bool   `mapstructure:"cni-exclusive"`
	CNILogFile            string `mapstructure:"cni-log-file"`
	CNIChainingMode       string `mapstructure:"cni-chaining-mode"`
}

// DefaultConfig writes no file, because the agent cannot guess the directory of the container runtime.
var DefaultConfig = Config{
	WriteCNIConfWhenReady: "",
	ReadCNIConf:           "",
	CNIExclusive:          false,
	CNILogFile:            "",
	CNIChainingMode:       modeNone,
}

// Values of --cni-chaining-mode.
const (
	modeNone    = "none"
	modePortmap = "portmap"
)

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("write-cni-conf-when-ready", c.WriteCNIConfWhenReady,
		"File to write the CNI configuration list to once pods can be attached, e.g. /etc/cni/net.d/05-waggle.conflist; empty for none")
	flags.String("read-cni-conf", c.ReadCNIConf, "File whose contents are written instead of the agent's own CNI configuration list")
	flags.Bool("cni-exclusive", c.CNIExclusive, "Rename other CNI configurations in the same directory, except those of multus, to end in .waggle_bak")
	flags.String("cni-log-file", c.CNILogFile, "File that the CNI plugin logs to; empty for none")
	flags.String("cni-chaining-mode", c.CNIChainingMode, "Plugins after waggle-cni in the list: none or portmap")
}

// options are the checked flags. They are immutable.
type options struct {
	Config
}

func newOptions(c Config) (options, error) {
	for _, p := range []struct{ flag, path string }{{"write-cni-conf-when-ready", c.WriteCNIConfWhenReady},
		{"read-cni-conf", c.ReadCNIConf}, {"cni-log-file", c.CNILogFile}} {
		if p.path != "" && !filepath.IsAbs(p.path) {
			return options{}, fmt.Errorf("--%s=%q: must be an absolute path", p.flag, p.path)
		}
	}
	if path := c.WriteCNIConfWhenReady; path != "" && filepath.Ext(path) != ".conflist" {
		return options{}, fmt.Errorf("--write-cni-conf-when-ready=%q: runtimes read only files that end in .conflist", path)
	}
	if c.CNIChainingMode != modeNone && c.CNIChainingMode != modePortmap {
		return options{}, fmt.Errorf("--cni-chaining-mode=%q: must be %s or %s", c.CNIChainingMode, modeNone, modePortmap)
	}
	return options{c}, nil
}

// isConf reports whether container runtimes read a file of this name.
func isConf(path string) bool {
	switch filepath.Ext(path) {
	case ".conf", ".conflist", ".json":
		return true
	}
	return false
}
