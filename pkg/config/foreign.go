package config

import (
	"strings"

	"github.com/spf13/pflag"
)

// foreignMark is the annotation of flags that the agent accepts and ignores.
const foreignMark = "waggle_foreign"

// AddForeign registers Cilium's flags that no cell has, as hidden flags, so that a command line for Cilium is accepted.
// The caller must register all other flags before.
func AddForeign(flags *pflag.FlagSet) {
	add := func(name string, value pflag.Value, noValue string) {
		if flags.Lookup(name) != nil {
			return
		}
		flags.AddFlag(&pflag.Flag{Name: name, Usage: "Accepted for compatibility with Cilium and ignored", Value: value, Hidden: true,
			NoOptDefVal: noValue, Annotations: map[string][]string{foreignMark: nil}})
	}
	for name := range strings.FieldsSeq(foreignSwitches) {
		add(name, new(anything), "true")
	}
	for name := range strings.FieldsSeq(foreignValues) {
		add(name, new(anything), "")
	}
}

func isForeign(f *pflag.Flag) bool {
	_, ok := f.Annotations[foreignMark]
	return ok
}

// foreign reports whether Cilium's agent or operator has the key. It is for flag sets without [AddForeign] and for keys of the operator.
func foreign(key string) bool {
	for _, list := range []string{foreignSwitches, foreignValues, foreignOperator} {
		for name := range strings.FieldsSeq(list) {
			if name == key {
				return true
			}
		}
	}
	return false
}

// anything is a flag value that accepts every text.
type anything string

// Set implements pflag.Value.
func (a *anything) Set(s string) error { *a = anything(s); return nil }

// String implements pflag.Value.
func (a *anything) String() string { return string(*a) }

// Type implements pflag.Value.
func (a *anything) Type() string { return "string" }
