package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// FlagError rewrites an error of pflag about the command line: for an unknown flag it names the nearest known one, for a bad
// value the expected form. It returns other errors unchanged.
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

// unknownKey returns the error for an unknown key. It names the key as the source does: with dashes on the command line, without them for a file.
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

// wants describes the valid values of each type of flag.
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

// cause removes the text of pflag, which repeats the flag and the value.
func cause(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && invalid.Unwrap() != nil {
		return invalid.Unwrap()
	}
	return err
}

// shorten truncates a key or value, which may be a whole file, to 80 bytes for messages.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// nearest returns the known key with the smallest edit distance, or "" when no key is near enough for a misspelling.
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

// distance returns the edit distance of a and b: the number of insertions, deletions and substitutions of bytes.
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
