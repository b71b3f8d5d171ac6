package labels

import (
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Culprits returns one sentence, to follow a colon, that names the labels with the most different values in the given sets and the rules that exclude them
// from identities. It is empty when no label has more than one value.
func Culprits(sets iter.Seq[map[string]string]) string {
	values := map[string]map[string]struct{}{}
	for labels := range sets {
		for key, value := range labels {
			if values[key] == nil {
				values[key] = map[string]struct{}{}
			}
			values[key][value] = struct{}{}
		}
	}
	keys := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		if d := len(values[b]) - len(values[a]); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	var named []string
	for _, key := range keys {
		// A label with much fewer values than the first does not cause the number of sets.
		if n := len(values[key]); len(named) < 2 && n > 1 && n*2 >= len(values[keys[0]]) {
			named = append(named, culprit(key, n))
		}
	}
	return strings.Join(named, "; ")
}

// culprit describes one label.
func culprit(label string, values int) string {
	text := fmt.Sprintf("label %s has %s different values", label, thousands(values))
	source, key, _ := strings.Cut(label, ":")
	if key == KeyNamespace || key == KeyCluster {
		return text
	}
	rule := "!" + regexp.QuoteMeta(key)
	if strings.Contains(key, ":") { // the part before a colon would be read as the source
		rule = source + ":" + rule
	}
	return text + "; exclude it with --labels=" + rule
}

// thousands formats 61200 as "61,200".
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
