package labels

import (
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sets returns n sets of labels that differ in the value of one label.
func sets(n int, label string) iter.Seq[map[string]string] {
	return func(yield func(map[string]string) bool) {
		for i := range n {
			if !yield(map[string]string{"k8s:app": fmt.Sprint(i % 7), label: fmt.Sprint(i)}) {
				return
			}
		}
	}
}

func TestCulprits_NamesLabelAndWorkingOption(t *testing.T) {
	t.Parallel()
	for _, label := range []string{
		"k8s:job-name", "k8s:app.kubernetes.io/instance", "k8s:batch.kubernetes.io/job-name-x", "user:a+b(c", "user:a:b",
		"k8s:" + KeyNamespaceLabels + ".run", "k8s:" + KeyServiceAccount,
	} {
		text := Culprits(sets(61200, label))
		require.Contains(t, text, "label "+label+" has 61,200 different values; exclude it with --labels=")
		require.NotContains(t, text, "k8s:app ")
		_, option, _ := strings.Cut(text, "--labels=")
		f, err := NewFilter([]string{option}, nil)
		require.NoError(t, err, option)
		require.NotContains(t, f.Relevant(map[string]string{label: "x"}), label, option)
		require.Contains(t, f.Relevant(map[string]string{"k8s:app": "x"}), "k8s:app", option)
	}
}

func TestCulprits_NamespaceLabel_HasNoOption(t *testing.T) {
	t.Parallel()
	require.Equal(t, "label k8s:io.kubernetes.pod.namespace has 1,000 different values", Culprits(sets(1000, "k8s:"+KeyNamespace)))
	require.Empty(t, Culprits(sets(1, "k8s:a")))
	require.Equal(t, "1", thousands(1))
	require.Equal(t, "1,234,567", thousands(1234567))
}
