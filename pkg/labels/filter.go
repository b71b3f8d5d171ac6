package labels

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
)

// rule includes or excludes labels whose key has a prefix that expr matches.
type rule struct {
	source  string // empty matches any source
	expr    *regexp.Regexp
	exclude bool
}

// Filter selects the labels that form an identity. Among the rules that match a label, the longest match of an including rule is compared with the shortest
// match of an excluding rule. The label is kept if the including match is longer, and excluded otherwise. A label without a matching rule is kept, except in
// whitelist mode. A Filter is immutable.
type Filter struct {
	rules     []rule
	whitelist bool // the user specified an including rule, so labels without an including rule are excluded
}

// defaults are Cilium's, so that both produce the same identities. "!" excludes.
var defaults = []string{
	SourceReserved + ":.*",
	regexp.QuoteMeta(KeyNamespace),
	regexp.QuoteMeta(KeyNamespaceLabels),
	`app\.kubernetes\.io`,
	regexp.QuoteMeta(KeyCluster),
	`!io\.kubernetes`,
	`!kubernetes\.io`,
	`!statefulset\.kubernetes\.io/pod-name`,
	`!apps\.kubernetes\.io/pod-index`,
	`!batch\.kubernetes\.io/job-completion-index`,
	`!batch\.kubernetes\.io/controller-uid`,
	`!.*beta\.kubernetes\.io`,
	`!k8s\.io`,
	`!pod-template-generation`,
	`!pod-template-hash`,
	`!controller-revision-hash`,
	`!controller-uid`,
	`!annotation.*`,
	`!etcd_node`,
}

// Prefix is one rule in a file of --label-prefix-file.
type Prefix struct {
	Source string `json:"source"`
	Prefix string `json:"prefix"` // a regular expression, matched at the start of the key
	Invert bool   `json:"invert"` // exclude matching labels
}

// NewFilter adds the user's prefixes, of the form "[source:][!]regexp", to the default rules or, if file is not nil, to the rules in file. Labels of the
// source reserved are always kept.
func NewFilter(prefixes []string, file []Prefix) (*Filter, error) {
	f := &Filter{}
	if file == nil {
		for _, text := range defaults {
			if err := f.addText(text); err != nil {
				return nil, err
			}
		}
		f.whitelist = false // including default rules only make exceptions from excluding ones
	}
	for _, p := range file {
		if err := f.add(p); err != nil {
			return nil, err
		}
	}
	var errs []error
	for _, text := range prefixes {
		errs = append(errs, f.addText(text))
	}
	return f, errors.Join(errs...)
}

func (f *Filter) addText(text string) error {
	p := Prefix{Prefix: text}
	if source, rest, found := strings.Cut(text, ":"); found {
		p.Source, p.Prefix = source, rest
	}
	p.Prefix, p.Invert = strings.CutPrefix(p.Prefix, "!")
	return f.add(p)
}

func (f *Filter) add(p Prefix) error {
	if p.Prefix == "" {
		return fmt.Errorf("label prefix of source %q is empty: want [source:][!]regular expression", p.Source)
	}
	if _, err := regexp.Compile(p.Prefix); err != nil { // without the group below, in which ")(" would compile
		return fmt.Errorf("label prefix %q: %w", p.Prefix, err)
	}
	expr, err := regexp.Compile(`\A(?:` + p.Prefix + `)`)
	if err != nil {
		return fmt.Errorf("label prefix %q: %w", p.Prefix, err)
	}
	f.rules = append(f.rules, rule{p.Source, expr, p.Invert})
	f.whitelist = f.whitelist || !p.Invert
	return nil
}

// Relevant returns the labels that form an identity.
func (f *Filter) Relevant(labels map[string]string) map[string]string {
	relevant := maps.Clone(labels)
	maps.DeleteFunc(relevant, func(key, _ string) bool { return !f.Keeps(key) })
	return relevant
}

// Keeps reports whether a label "source:key" is part of identities.
func (f *Filter) Keeps(label string) bool {
	source, key, _ := strings.Cut(label, ":")
	if source == SourceReserved {
		return true
	}
	included, excluded := 0, 0
	for _, r := range f.rules {
		if r.source != "" && r.source != source {
			continue
		}
		match := r.expr.FindStringIndex(key)
		switch {
		case match == nil:
		case !r.exclude:
			included = max(included, match[1])
		case excluded == 0 || match[1] < excluded:
			excluded = match[1]
		}
	}
	return !f.whitelist && excluded == 0 || included > excluded
}
