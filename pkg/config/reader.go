package config

import (
	"io"
	"slices"

	"github.com/spf13/pflag"
)

// Reader compares the configuration directory with the options of the running process. It must be used by one goroutine only.
type Reader struct {
	dir, origin string         // as in [readDirectory]
	flags       *pflag.FlagSet // of the process; never changed
	preceding   []entry        // entries of sources with precedence over the directory
	running     []Option

	last     []entry // of the directory, as of the last complete read
	changed  []Option
	rejected error
}

// Compare reads the directory. changed lists the options that have another value after a restart of the process, with that value, sorted by key. rejected is
// the error with which the process would not start again; then changed is empty. If the directory cannot be read, err is set, and changed and rejected are
// those of the last complete read.
func (r *Reader) Compare() (changed []Option, rejected, err error) {
	entries, err := readDirectory(r.dir, r.origin)
	if err == nil && !slices.Equal(entries, r.last) {
		r.last = entries
		r.changed, r.rejected = r.next(entries)
	}
	return r.changed, r.rejected, err
}

// next returns the options that have another value in a process that starts with these entries of the directory.
func (r *Reader) next(entries []entry) ([]Option, error) {
	flags := r.copyFlags()
	eff, err := resolve(flags, slices.Concat(r.preceding, entries))
	if err != nil {
		return nil, err
	}
	if err := checkStart(flags, eff); err != nil {
		return nil, err
	}
	var changed []Option
	for i, o := range eff.Options { // running has the same keys in the same order
		if o.Value != r.running[i].Value {
			changed = append(changed, o)
		}
	}
	return changed, nil
}

// checkStart returns the mistakes that a process finds at its start outside of [Load].
func checkStart(flags *pflag.FlagSet, eff Effective) error {
	i := slices.IndexFunc(eff.Options, func(o Option) bool { return o.Key == RoleFlag })
	if i < 0 {
		return nil
	}
	role := eff.Options[i]
	if err := checkRole(role.Value, role.Origin); err != nil || role.Value == RoleCluster {
		return err
	}
	accepted, err := flags.GetStringSlice(AcceptFlag)
	if err != nil {
		return err
	}
	return eff.CheckProtection(accepted)
}

// copyFlags returns flags whose values [resolve] can set. They have no value yet, except the ones on the command line. resolve sets neither these nor the
// flags that the process ignores, so they are shared with the process.
func (r *Reader) copyFlags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	r.flags.VisitAll(func(f *pflag.Flag) {
		c := *f
		c.Changed = false
		if !isForeign(f) && otherRole(f) == "" && !r.onCommandLine(f.Name) {
			c.Value = newValue(f.Value.Type())
		}
		flags.AddFlag(&c)
	})
	return flags
}

func (r *Reader) onCommandLine(key string) bool {
	return slices.ContainsFunc(r.preceding, func(e entry) bool { return e.source == Flag && e.key == key })
}

// newValue returns an empty value for a type of flag.
func newValue(kind string) pflag.Value {
	const name = "value"
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	switch kind {
	case "bool":
		flags.Bool(name, false, "")
	case "int":
		flags.Int(name, 0, "")
	case "float32":
		flags.Float32(name, 0, "")
	case "float64":
		flags.Float64(name, 0, "")
	case "duration":
		flags.Duration(name, 0, "")
	case "stringSlice":
		flags.StringSlice(name, nil, "")
	default:
		return new(anything) // a string
	}
	return flags.Lookup(name).Value
}
