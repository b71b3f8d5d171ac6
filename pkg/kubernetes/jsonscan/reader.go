package jsonscan

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// Reader reads one JSON text. Once it is unable, all its methods have no effect. Only one goroutine may use it.
type Reader struct {
	data   []byte
	at     int
	depth  int
	unable bool
}

// NewReader returns a reader of data, which it does not change.
func NewReader(data []byte) *Reader { return &Reader{data: data} }

// maxDepth limits the nesting of values.
const maxDepth = 100

// Done reports whether the whole text was read and the reader is not unable.
func (r *Reader) Done() bool {
	r.space()
	return !r.unable && r.at == len(r.data)
}

// Fail makes the reader unable, so that the caller decodes the text with a library.
func (r *Reader) Fail() { r.unable = true }

// Object reads an object. It calls one with the name of each member. The name is valid until one returns; one must read or [Reader.Skip] the value.
func (r *Reader) Object(one func(name []byte)) {
	r.list('{', '}', func() {
		name := r.Text()
		r.space()
		r.expect(':')
		if !r.unable {
			one(name)
		}
	})
}

// Array reads an array. It calls one for each element, and one must read or [Reader.Skip] the element.
func (r *Reader) Array(one func()) { r.list('[', ']', one) }

func (r *Reader) list(begin, end byte, one func()) {
	r.space()
	r.expect(begin)
	if r.depth++; r.depth > maxDepth {
		r.unable = true
	}
	for first := true; !r.unable; first = false {
		r.space()
		if r.next() == end && first {
			r.at++
			break
		}
		one()
		r.space()
		c := r.next()
		r.at++
		if c == end {
			break
		}
		if c != ',' {
			r.unable = true
		}
	}
	r.depth--
}

// Text reads a string without escapes. The result shares memory with the data.
func (r *Reader) Text() []byte {
	text, plain := r.text()
	if !plain || !utf8.Valid(text) {
		r.unable = true
		return nil
	}
	return text
}

// Unquote reads a string, with or without escapes, and returns a copy.
func (r *Reader) Unquote() (out string) {
	r.space()
	from := r.at
	text, plain := r.text()
	switch {
	case r.unable:
		return ""
	case !utf8.Valid(text):
		r.unable = true
		return ""
	case plain:
		return string(text)
	}
	if err := json.Unmarshal(r.data[from:r.at], &out); err != nil {
		r.unable = true
		return ""
	}
	return out
}

// Int reads an integer without fraction and exponent.
func (r *Reader) Int() int64 {
	r.space()
	from := r.at
	r.number()
	if r.unable {
		return 0
	}
	n, err := strconv.ParseInt(string(r.data[from:r.at]), 10, 64)
	if err != nil {
		r.unable = true
	}
	return n
}

// Skip reads a value and discards it.
func (r *Reader) Skip() {
	r.space()
	switch c := r.next(); {
	case c == '{':
		r.list('{', '}', func() {
			r.text()
			r.space()
			r.expect(':')
			r.Skip()
		})
	case c == '[':
		r.list('[', ']', r.Skip)
	case c == '"':
		r.text()
	case c == 't':
		r.word("true")
	case c == 'f':
		r.word("false")
	case c == 'n':
		r.word("null")
	default:
		r.number()
	}
}

// next returns the byte at the current position; 0 at the end.
func (r *Reader) next() byte {
	if r.at < len(r.data) {
		return r.data[r.at]
	}
	return 0
}

func (r *Reader) expect(c byte) {
	if r.next() != c {
		r.unable = true
		return
	}
	r.at++
}

func (r *Reader) space() {
	for r.at < len(r.data) && isSpace(r.data[r.at]) {
		r.at++
	}
}

func (r *Reader) word(w string) {
	for i := range len(w) {
		r.expect(w[i])
	}
}

// text reads a string. plain reports whether it has no escapes.
func (r *Reader) text() (text []byte, plain bool) {
	r.space()
	r.expect('"')
	from, plain := r.at, true
	for !r.unable {
		c := r.next()
		r.at++
		switch {
		case c == '"':
			return r.data[from : r.at-1], plain
		case c == '\\':
			plain = false
			r.escape()
		case c < ' ':
			r.unable = true
		}
	}
	return nil, false
}

// escape reads the rest of an escape sequence after the backslash.
func (r *Reader) escape() {
	c := r.next()
	r.at++
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return
	case 'u':
		for range 4 {
			if c := r.next(); !isDigit(c) && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				r.unable = true
			}
			r.at++
		}
		return
	}
	r.unable = true
}

// number reads a number of RFC 8259.
func (r *Reader) number() {
	if r.next() == '-' {
		r.at++
	}
	if r.next() == '0' {
		r.at++
	} else {
		r.digits()
	}
	if r.next() == '.' {
		r.at++
		r.digits()
	}
	if c := r.next(); c == 'e' || c == 'E' {
		r.at++
		if c := r.next(); c == '+' || c == '-' {
			r.at++
		}
		r.digits()
	}
}

// digits reads at least one digit.
func (r *Reader) digits() {
	from := r.at
	for isDigit(r.next()) {
		r.at++
	}
	if r.at == from {
		r.unable = true
	}
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
