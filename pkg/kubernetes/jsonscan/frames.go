package jsonscan

import (
	"errors"
	"fmt"
	"io"
)

// MaxFrame limits one object of a stream, in bytes. An API server stores objects of 1.5 MiB at most.
const MaxFrame = 16 << 20

// errNoObject means that a value of the stream is not an object.
var errNoObject = errors.New("the stream is not one JSON object after the other")

// Frames splits a stream into JSON objects. Only one goroutine may use it.
type Frames struct {
	in   io.Reader
	buf  []byte
	from int // start of the current object in buf
	at   int // end of the scanned part of buf

	depth   int
	text    bool // inside a string
	escaped bool // after a backslash
}

// NewFrames returns a Frames that reads the stream from in.
func NewFrames(in io.Reader) *Frames { return &Frames{in: in} }

// Next returns the next object, which is valid until the next call. Next checks only that brackets match. The error is [io.EOF] when the stream ends between
// two objects, and [io.ErrUnexpectedEOF] when it ends within one.
func (f *Frames) Next() ([]byte, error) {
	f.from = f.at
	for {
		done, err := f.scan()
		switch {
		case err != nil:
			return nil, err
		case done:
			return f.buf[f.from:f.at], nil
		}
		if err := f.fill(); err != nil {
			return nil, err
		}
	}
}

const firstSize = 16 << 10

// fill reads more of the stream and appends it to the current object.
func (f *Frames) fill() error {
	have := f.buf[f.from:]
	switch {
	case len(have) >= MaxFrame:
		return fmt.Errorf("read a JSON object: it has more than %d bytes", MaxFrame)
	case 2*len(have) >= cap(f.buf):
		f.buf = append(make([]byte, 0, max(firstSize, 2*cap(f.buf))), have...)
	default:
		f.buf = f.buf[:copy(f.buf, have)]
	}
	f.from, f.at = 0, f.at-f.from
	n, err := f.in.Read(f.buf[len(f.buf):cap(f.buf)])
	f.buf = f.buf[:len(f.buf)+n]
	switch {
	case n > 0:
		return nil // the next read returns the error again
	case errors.Is(err, io.EOF) && len(f.buf) > 0:
		return io.ErrUnexpectedEOF
	}
	return err
}

// scan continues to the end of the object or of the buffer. It reports whether the object is complete.
func (f *Frames) scan() (done bool, err error) {
	if f.depth == 0 {
		for f.at < len(f.buf) && isSpace(f.buf[f.at]) {
			f.at++
		}
		if f.from = f.at; f.at < len(f.buf) && f.buf[f.at] != '{' {
			return false, errNoObject
		}
	}
	for f.at < len(f.buf) {
		c := f.buf[f.at]
		f.at++
		switch {
		case f.escaped:
			f.escaped = false
		case f.text:
			f.escaped, f.text = c == '\\', c != '"'
		case c == '"':
			f.text = true
		case c == '{' || c == '[':
			f.depth++
		case c == '}' || c == ']':
			if f.depth--; f.depth == 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
