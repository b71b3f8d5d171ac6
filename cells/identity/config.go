package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/labels"
)

// Config is what was typed.
type Config struct {
	AllocationMode  string `mapstructure:"identity-allocation-mode"`
	Labels          string `mapstructure:"labels"`
	LabelPrefixFile string `mapstructure:"label-prefix-file"`
}

// modeCRD is the one mode that there is.
const modeCRD = "crd"

// DefaultConfig are the defaults.
var DefaultConfig = Config{AllocationMode: modeCRD}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("identity-allocation-mode", c.AllocationMode, "Where numbers of label sets come from: crd (CiliumIdentity "+
		"objects). Modes with a kvstore are taken for crd")
	flags.String("labels", c.Labels, "Rules [source:][!]regexp, separated by commas or spaces, that include (or with ! exclude) "+
		"labels whose key begins so in identities; one that includes leaves out all that none includes")
	flags.String("label-prefix-file", c.LabelPrefixFile, "JSON file with rules in the place of the default ones")
}

// newFilter reads the rules of labels.
func newFilter(c Config, log *slog.Logger) (*labels.Filter, error) {
	switch c.AllocationMode {
	case modeCRD:
	case "kvstore", "doublewrite-readkvstore", "doublewrite-readcrd":
		log.Info("There is no kvstore; identities are CiliumIdentity objects", "identityAllocationMode", c.AllocationMode)
	default:
		return nil, fmt.Errorf("--identity-allocation-mode=%q: want crd", c.AllocationMode)
	}
	var file []labels.Prefix
	if c.LabelPrefixFile != "" {
		var err error
		if file, err = readPrefixes(c.LabelPrefixFile); err != nil {
			return nil, fmt.Errorf("--label-prefix-file=%s: %w", c.LabelPrefixFile, err)
		}
	}
	prefixes := strings.FieldsFunc(c.Labels, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
	filter, err := labels.NewFilter(prefixes, file)
	if err != nil {
		return nil, fmt.Errorf("--labels and --label-prefix-file: %w", err)
	}
	return filter, nil
}

// readPrefixes reads a file of Cilium's form.
func readPrefixes(path string) ([]labels.Prefix, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Version  int             `json:"version"`
		Prefixes []labels.Prefix `json:"valid-prefixes"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("parse it: %w", err)
	}
	if file.Version != 1 {
		return nil, fmt.Errorf("it has version %d; want 1", file.Version)
	}
	if len(file.Prefixes) == 0 {
		return nil, errors.New("it has no valid-prefixes")
	}
	return file.Prefixes, nil
}
