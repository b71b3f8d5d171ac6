package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// FlagError words what pflag says about the command line: an unknown flag with its nearest neighbour, a bad value with
// what was expected. Other errors pass.
func FlagError(flags *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		return unknownKey(entry{key: unknown.GetSpecifiedName(), origin: "--" + unknown.GetSpecifiedName()}, flags)
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		flag := invalid.GetFlag()
		return badValue(entry{key: flag.Name, value: invalid.GetValue(), origin: "--" + flag.Name}, flag, err)
	}
	return err
}

// unknownKey names the key as it was written: with dashes on the command line, bare as the name of a file.
func unknownKey(e entry, flags *pflag.FlagSet) error {
	where, dashes := e.origin+": ", ""
	if e.source == Flag {
		where, dashes = "", "--"
	}
	near := nearest(e.key, flags)
	if near == "" {
		return fmt.Errorf("%sunknown option %q", where, dashes+shorten(e.key))
	}
	return fmt.Errorf("%sunknown option %q, the nearest known one is %q", where, dashes+shorten(e.key), dashes+near)
}

// wants says in words what a flag of a type takes.
var wants = map[string]string{
	"bool":           "true or false",
	"int":            "a whole number",
	"int32":          "a whole number",
	"int64":          "a whole number",
	"uint":           "a whole number, not negative",
	"uint8":          "a whole number from 0 to 255",
	"uint16":         "a whole number from 0 to 65535",
	"uint32":         "a whole number, not negative",
	"uint64":         "a whole number, not negative",
	"float64":        "a number",
	"duration":       "a duration such as 30s or 1h15m",
	"ip":             "an IP address",
	"ipNet":          "a CIDR such as 10.0.0.0/16",
	"stringToString": "key=value pairs with commas between",
}

func badValue(e entry, flag *pflag.Flag, err error) error {
	from := ""
	if e.origin != "--"+e.key {
		from = " from " + e.origin
	}
	if want, ok := wants[flag.Value.Type()]; ok {
		return fmt.Errorf("--%s%s: bad value %s: want %s", e.key, from, strconv.Quote(shorten(e.value)), want)
	}
	return fmt.Errorf("--%s%s: bad value %s: %w", e.key, from, strconv.Quote(shorten(e.value)), cause(err))
}

// cause takes pflag's own words away, which repeat flag and value.
func cause(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && invalid.Unwrap() != nil {
		return invalid.Unwrap()
	}
	return err
}

// shorten keeps messages readable when a key or a value is a whole file.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// nearest is the known key with the smallest edit distance, or "" when none is near enough to be meant.
func nearest(key string, flags *pflag.FlagSet) string {
	if len(key) > 100 {
		return ""
	}
	best, bestDistance := "", max(2, len(key)/3)+1
	flags.VisitAll(func(f *pflag.Flag) {
		if isForeign(f) {
			return
		}
		if d := distance(key, f.Name); d < bestDistance {
			best, bestDistance = f.Name, d
		}
	})
	return best
}

// distance counts the insertions, deletions and substitutions of bytes between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			substitute := diagonal
			if a[i-1] != b[j-1] {
				substitute++
			}
			diagonal = row[j]
			row[j] = min(substitute, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
