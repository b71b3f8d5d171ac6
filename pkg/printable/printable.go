// Package printable escapes untrusted text for a terminal, so that it can neither move the cursor, change colours or the
// order of the text, nor fill the screen.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns s with all bytes and runes escaped that a terminal could interpret as a command.
func Text(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == unicode.ReplacementChar && !strings.HasPrefix(s[i:], string(unicode.ReplacementChar)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unprintable(r):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// unprintable reports whether a rune is not printable, such as control characters and characters that reorder text.
func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// Short returns [Text] of at most the first limit bytes, followed by "..." when s is longer.
func Short(s string, limit int) string {
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return Text(s)
}

// List joins the first items of a list, at most most, each as by [Text], and the number of the others: "a, b and 3 more".
func List(items []string, most int) string {
	shown := make([]string, 0, most)
	for _, item := range items[:min(len(items), most)] {
		shown = append(shown, Text(item))
	}
	text := strings.Join(shown, ", ")
	if more := len(items) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
