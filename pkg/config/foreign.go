package config

import (
	"strings"

	"github.com/spf13/pflag"
)

// foreignMark is the annotation of flags that are accepted and ignored.
const foreignMark = "waggle_foreign"

// AddForeign registers Cilium's flags that no cell has, hidden, so that a command line written for Cilium is accepted.
// Call it after all other flags are registered.
func AddForeign(flags *pflag.FlagSet) {
	add := func(name string, value pflag.Value, noValue string) {
		if flags.Lookup(name) != nil {
			return
		}
		flags.AddFlag(&pflag.Flag{Name: name, Usage: "Accepted for Cilium's sake and ignored", Value: value, Hidden: true,
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

// foreign reports whether Cilium has the key, for flag sets without [AddForeign] and for keys of Cilium's operator.
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

// anything is a flag value that takes everything.
type anything string

// Set implements pflag.Value.
func (a *anything) Set(s string) error { *a = anything(s); return nil }

// String implements pflag.Value.
func (a *anything) String() string { return string(*a) }

// Type implements pflag.Value.
func (a *anything) Type() string { return "string" }
