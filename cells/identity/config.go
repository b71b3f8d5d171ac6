package identity

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/labels"
)

// Config is what was typed.
type Config struct {
	AllocationMode  string `mapstructure:"identity-allocation-mode"`
	Labels          string `mapstructure:"labels"`
	LabelPrefixFile string `mapstructure:"label-prefix-file"`
	// Grace is how long an endpoint waits for a number of the cluster before it gets one of this node. The flag is hidden: tests set a
	// longer time where other processes use the CPU, and may then rely on it that no number of this node comes in between.
	Grace time.Duration `mapstructure:"identity-grace"`
}

// modeCRD is the one mode that there is.
const modeCRD = "crd"

// graceFlag is hidden, see [Config].
const graceFlag = "identity-grace"

// DefaultConfig are the defaults.
var DefaultConfig = Config{AllocationMode: modeCRD, Grace: time.Second}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("identity-allocation-mode", c.AllocationMode, "Where numbers of label sets come from: crd (CiliumIdentity "+
		"objects). Modes with a kvstore are taken for crd")
	flags.String("labels", c.Labels, "Rules [source:][!]regexp, separated by commas or spaces, that include (or with ! exclude) "+
		"labels whose key begins so in identities; one that includes leaves out all that none includes")
	flags.String("label-prefix-file", c.LabelPrefixFile, "JSON file with rules in the place of the default ones")
	flags.Duration(graceFlag, c.Grace, "Time that an endpoint waits for a number of the cluster before it gets one of this node")
	_ = flags.MarkHidden(graceFlag)
}

// newFilter checks the configuration and reads the rules of labels.
func newFilter(c Config, log *slog.Logger) (*labels.Filter, error) {
	if c.Grace <= 0 {
		return nil, fmt.Errorf("--%s=%v: must be positive", graceFlag, c.Grace)
	}
	switch c.AllocationMode {
	case modeCRD:
	case "kvstore", "doublewrite-readkvstore", "doublewrite-readcrd":
		log.Info("There is no kvstore; identities are CiliumIdentity objects", "identityAllocationMode", c.AllocationMode)
	default:
		return nil, fmt.Errorf("--identity-allocation-mode=%q: want crd", c.AllocationMode)
	}
	return labels.ReadFilter(c.Labels, c.LabelPrefixFile)
}
