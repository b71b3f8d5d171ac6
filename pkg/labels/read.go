package labels

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// ReadFilter returns the filter of --labels, whose rules are separated by commas or spaces, and --label-prefix-file. Both may be empty.
func ReadFilter(rules, prefixFile string) (*Filter, error) {
	var file []Prefix
	if prefixFile != "" {
		var err error
		if file, err = readPrefixes(prefixFile); err != nil {
			return nil, fmt.Errorf("--label-prefix-file=%s: %w", prefixFile, err)
		}
	}
	prefixes := strings.FieldsFunc(rules, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
	filter, err := NewFilter(prefixes, file)
	if err != nil {
		return nil, fmt.Errorf("--labels and --label-prefix-file: %w", err)
	}
	return filter, nil
}

// readPrefixes reads a label prefix file of Cilium's format.
func readPrefixes(path string) ([]Prefix, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Version  int      `json:"version"`
		Prefixes []Prefix `json:"valid-prefixes"`
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
