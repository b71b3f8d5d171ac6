// Package printable makes text that came from outside fit for a terminal: it can neither move the cursor, change colours or
// the order of the text, nor fill the screen.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text is s with everything escaped that a terminal could take for a command.
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

// unprintable runes are control characters, and those that reorder text.
func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// Short is [Text] of no more than the first limit bytes; dots say that there are more.
func Short(s string, limit int) string {
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return Text(s)
}
