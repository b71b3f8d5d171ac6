package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// DirFlag is the name of the flag for the configuration directory.
const DirFlag = "config-dir"

// AddFlags registers the flags that belong to no cell, because the program needs them before the hive exists.
func AddFlags(flags *pflag.FlagSet) {
	flags.String(DirFlag, "", "Directory with one file for each option (a mounted ConfigMap)")
	flags.Bool("debug", false, "Log decisions with their inputs")
	flags.StringSlice(AcceptFlag, nil, "Options of Cilium that the agent may ignore although they enable a protection in Cilium, "+
		"e.g. enable-wireguard,enable-host-firewall")
	flags.String(RoleFlag, RoleNode, "Role of this process: node (the agent of a node) or cluster (work for the whole cluster, one of several replicas)")
}

// Source is the source of an option's value. A smaller number has precedence.
type Source int

const (
	Flag Source = iota
	Environment
	Directory
	Default
)

// String returns the name of the source in tables.
func (s Source) String() string {
	return [...]string{"flag", "environment", "directory", "default"}[s]
}

// Option is an option with its effective value.
type Option struct {
	Key     string
	Value   string
	Default string
	Source  Source
	Origin  string // "--key", the name of the variable, or the path of the file; empty for a default
}

// Effective is the configuration that [Load] returns.
type Effective struct {
	Options  []Option  // sorted by key
	Ignored  []Ignored // sorted by key
	Warnings []string  // one sentence each
	Reader   *Reader   // reads the configuration directory again; nil without a directory
}

// Ignored is an option of Cilium that the agent does not implement.
type Ignored struct {
	Key         string
	Source      Source
	Origin      string // as in [Option]
	Unprotected string // effect of the missing protection that the option has in Cilium; empty when it protects nothing
	Remedy      string // alternative protection
}

// entry is the value of an option from one source.
type entry struct {
	key, value, origin string
	source             Source
}

// Load reads the environment (in the form of os.Environ) and the directory that the flags or the environment name. It sets
// each flag that is not on the command line to the value with the highest precedence. The flags must be parsed before, and
// [AddForeign] must be called before the flags are parsed if flags of Cilium are to be accepted. The error joins all mistakes.
func Load(flags *pflag.FlagSet, environ []string) (Effective, error) {
	fromEnv, warnings := environment(flags, environ)
	dir, origin := directoryName(flags, fromEnv)
	fromDir, err := readDirectory(dir, origin)
	if err != nil {
		return Effective{}, err
	}
	preceding := slices.Concat(typed(flags), fromEnv)
	eff, err := resolve(flags, slices.Concat(preceding, fromDir))
	if err != nil {
		return Effective{}, err
	}
	eff.Warnings = slices.Concat(warnings, eff.Warnings)
	if dir != "" {
		eff.Reader = &Reader{dir: dir, origin: origin, flags: flags, preceding: preceding, running: eff.Options, last: fromDir}
	}
	return eff, nil
}

// resolve sets each flag that is not on the command line to the value with the highest precedence. Of the entries of a key, the first one has precedence.
func resolve(flags *pflag.FlagSet, entries []entry) (Effective, error) {
	entries, errs := translate(flags, entries)
	origins, ignored := map[string]entry{}, map[string]entry{}
	for _, e := range entries {
		flag := flags.Lookup(e.key)
		switch {
		case e.source == Directory && e.key == DirFlag:
			errs = append(errs, fmt.Errorf("%s: the directory cannot name a directory; set --%s", e.origin, DirFlag))
		case flag == nil && foreign(e.key), flag != nil && isForeign(flag):
			if first, decided := ignored[e.key]; !decided || first.value == "" {
				ignored[e.key] = e
			}
		case flag == nil:
			errs = append(errs, unknownKey(e, flags))
		case otherRole(flag) != "" && e.source == Flag:
			errs = append(errs, wrongRole(e, otherRole(flag)))
		case otherRole(flag) != "":
		default:
			if _, decided := origins[e.key]; decided || e.value == "" && flag.Value.Type() != "string" {
				continue // a previous source has precedence; an empty value of a flag that is not a string counts as not set
			}
			origins[e.key] = e
			if e.source != Flag || e.origin != "--"+e.key { // the parser has already set a flag that is on the command line under this name
				if err := flags.Set(e.key, e.value); err != nil {
					errs = append(errs, badValue(e, flag, err))
				}
			}
		}
	}
	if err := joinCapped(errs); err != nil {
		return Effective{}, err
	}
	eff := Effective{Options: realized(flags, origins)}
	eff.ignore(ignored)
	return eff, nil
}

// ignore records the options of Cilium that the agent does not implement, and adds warnings.
func (e *Effective) ignore(options map[string]entry) {
	var meaningless, unprotected []string
	for _, key := range slices.Sorted(maps.Keys(options)) {
		o := options[key]
		p := protective(key, o.value)
		e.Ignored = append(e.Ignored, Ignored{Key: key, Source: o.source, Origin: o.origin, Unprotected: p.lost, Remedy: p.remedy})
		if p.lost != "" {
			unprotected = append(unprotected, fmt.Sprintf("%s (%s)", o.origin, p.lost))
		} else {
			meaningless = append(meaningless, o.origin)
		}
	}
	if len(meaningless) > 0 {
		e.Warnings = append(e.Warnings, "options of Cilium without effect in Waggle are ignored: "+strings.Join(meaningless, ", "))
	}
	if len(unprotected) > 0 {
		e.Warnings = append(e.Warnings, "options of Cilium protect what Waggle does not: "+strings.Join(unprotected, ", "))
	}
}

// typed returns the flags that are set on the command line.
func typed(flags *pflag.FlagSet) []entry {
	var out []entry
	flags.Visit(func(f *pflag.Flag) {
		out = append(out, entry{key: f.Name, value: f.Value.String(), origin: "--" + f.Name, source: Flag})
	})
	return out
}

// directoryName returns the configuration directory and the flag or variable that sets it.
func directoryName(flags *pflag.FlagSet, fromEnv []entry) (dir, origin string) {
	flag := flags.Lookup(DirFlag)
	if flag == nil {
		return "", ""
	}
	if !flag.Changed {
		for _, e := range fromEnv {
			if e.key == DirFlag {
				return e.value, e.origin
			}
		}
	}
	return flag.Value.String(), "--" + DirFlag
}

// realized returns all options that the agent implements, sorted by key.
func realized(flags *pflag.FlagSet, origins map[string]entry) []Option {
	var out []Option
	flags.VisitAll(func(f *pflag.Flag) {
		if isForeign(f) || otherRole(f) != "" || f.Name == "help" {
			return
		}
		o := Option{Key: f.Name, Value: f.DefValue, Default: f.DefValue, Source: Default}
		if e, ok := origins[f.Name]; ok {
			o.Value, o.Source, o.Origin = f.Value.String(), e.source, e.origin
		}
		out = append(out, o)
	})
	slices.SortFunc(out, func(a, b Option) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// maxErrors limits the number of reported errors. A directory without configuration files would cause hundreds.
const maxErrors = 10

func joinCapped(errs []error) error {
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors:maxErrors], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}
