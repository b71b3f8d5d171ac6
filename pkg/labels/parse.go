package labels

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Sources of labels with a special meaning.
const (
	SourceK8s      = "k8s"      // from the pod and its namespace
	SourceReserved = "reserved" // assigned only by the agent
)

// forbidden are sources of identities that are not endpoints. Requests must not use them.
var forbidden = []string{SourceReserved, "cidr", "cidrgroup", "fqdn"}

const (
	maxLabels      = 256
	maxLabelSource = 63
	maxLabelKey    = 512 // the label of a namespace has a prefix, so it is longer than the label of a pod
	maxLabelValue  = 253
)

// Parse parses labels of the form "source:key=value" into "source:key" -> value; "=value" is optional. It never returns an empty map.
func Parse(labels []string) (map[string]string, error) {
	if len(labels) > maxLabels {
		return nil, fmt.Errorf("labels: %d are set, at most %d are accepted", len(labels), maxLabels)
	}
	var parsed map[string]string
	var errs []error
	for _, label := range labels {
		key, value, err := parseLabel(label)
		if err == nil && hasOther(parsed, key, value) {
			err = errors.New("its key is set twice, with different values")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("labels: %s: %w", clip(label), err))
			continue
		}
		if parsed == nil {
			parsed = make(map[string]string, len(labels))
		}
		parsed[key] = value
	}
	return parsed, errors.Join(errs[:min(len(errs), 5)]...)
}

func hasOther(labels map[string]string, key, value string) bool {
	old, found := labels[key]
	return found && old != value
}

func parseLabel(label string) (key, value string, err error) {
	key, value, _ = strings.Cut(label, "=")
	source, name, found := strings.Cut(key, ":")
	switch {
	case !found || source == "" || name == "":
		return "", "", errors.New("want source:key=value")
	case slices.Contains(forbidden, source):
		return "", "", errors.New("the source " + source + " is reserved")
	case len(source) > maxLabelSource || len(name) > maxLabelKey || len(value) > maxLabelValue:
		return "", "", fmt.Errorf("source, key and value may have %d, %d and %d characters", maxLabelSource, maxLabelKey,
			maxLabelValue)
	}
	if source != SourceK8s && Surrounding(name) { // a selector of any source would accept it as the actual label
		return "", "", errors.New("its key describes the environment of a pod, which only labels of Kubernetes can")
	}
	for _, c := range []byte(source) {
		if !isAlnum(c) && c != '-' && c != '.' && c != '_' {
			return "", "", errors.New("its source has characters other than letters, digits, '-', '.' and '_'")
		}
	}
	for _, c := range []byte(name + value) {
		if c <= ' ' || c > '~' || c == ';' { // ';' ends a label in the keys of identities
			return "", "", errors.New("want printable ASCII without space and ';'")
		}
	}
	return key, value, nil
}

// surroundings is the prefix of the keys that only the agent may assign, except [KeyNamespace].
const surroundings = "io.cilium.k8s."

// Surrounding reports whether a key, without its source, is reserved for the agent, so that a pod must not set it.
func Surrounding(key string) bool {
	return key == KeyNamespace || strings.HasPrefix(key, surroundings)
}

// SourceOf returns the source of a key that [Parse] returned.
func SourceOf(key string) string {
	source, _, _ := strings.Cut(key, ":")
	return source
}

// Format is the inverse of [Parse]; the result is sorted.
func Format(labels map[string]string) []string {
	list := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, key+"="+labels[key])
	}
	return list
}

// MergeOtherSources copies the labels in have from sources other than k8s into ofPod, and returns the result.
func MergeOtherSources(ofPod, have map[string]string) map[string]string {
	for key, value := range have {
		if SourceOf(key) != SourceK8s {
			ofPod[key] = value
		}
	}
	return ofPod
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// clip quotes text of a client, so that a message contains neither terminal escapes nor ten kilobytes.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return strconv.QuoteToASCII(s)
	}
	return strconv.QuoteToASCII(s[:most]) + "..."
}
