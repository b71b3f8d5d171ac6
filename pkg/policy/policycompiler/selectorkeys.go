package policycompiler

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/pkg/policy"
)

// keyOf returns a key that only equal choices share, and the choice with its requirements sorted.
func keyOf(choice *policy.Selector) (key string, sorted *policy.Selector) {
	sorted = &policy.Selector{Requirements: slices.Clone(choice.Requirements)}
	slices.SortFunc(sorted.Requirements, func(a, b policy.Requirement) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Source, b.Source), cmp.Compare(a.Operator, b.Operator),
			slices.Compare(a.Values, b.Values))
	})
	var b []byte
	for _, r := range sorted.Requirements {
		b = append(b, '\n')
		for _, text := range [...]string{r.Key, r.Source, string(r.Operator)} {
			b = strconv.AppendQuote(b, text)
		}
		for _, value := range r.Values {
			b = strconv.AppendQuote(b, value)
		}
	}
	return string(b), sorted
}

func numbersKey(numbers []uint32) string {
	var b strings.Builder
	for _, number := range numbers {
		b.WriteByte('#')
		b.WriteString(strconv.FormatUint(uint64(number), 10))
	}
	return b.String()
}
