package identityallocator

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/labels"
)

// Config configures the source of identity numbers and the labels of identities.
type Config struct {
	AllocationMode  string `mapstructure:"identity-allocation-mode"`
	Labels          string `mapstructure:"labels"`
	LabelPrefixFile string `mapstructure:"label-prefix-file"`
	// Grace is the time that an endpoint waits for a number of the cluster before it gets one of this node. The flag is hidden: tests set a longer time where
	// other processes use the CPU, so that no number of this node is assigned in between.
	Grace time.Duration `mapstructure:"identity-grace"`
}

// modeCRD is the only supported mode.
const modeCRD = "crd"

// graceFlag names the hidden flag of Config.Grace.
const graceFlag = "identity-grace"

// DefaultConfig holds the default settings.
var DefaultConfig = Config{AllocationMode: modeCRD, Grace: time.Second}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("identity-allocation-mode", c.AllocationMode, "Source of identities of label sets: crd (CiliumIdentity "+
		"objects). Modes with a kvstore act as crd")
	flags.String("labels", c.Labels, "Comma- or space-separated rules [source:][!]regexp that include (!: exclude) labels in identities "+
		"by the start of their key; an including rule excludes all others")
	flags.String("label-prefix-file", c.LabelPrefixFile, "JSON file with rules that replace the default ones")
	flags.Duration(graceFlag, c.Grace, "Time that an endpoint waits for an identity of the cluster before it gets one local to this node")
	_ = flags.MarkHidden(graceFlag)
}

// newFilter validates the configuration and reads the rules for labels.
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
