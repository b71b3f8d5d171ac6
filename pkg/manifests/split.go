package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// document is a part of a file.
type document struct {
	line int // first line, from 1
	data []byte
}

// split cuts YAML at its document markers. A line that begins with "---" is a marker at any position, even inside a block of text, as YAML requires.
func split(data []byte) []document {
	var out []document
	start, startLine, line := 0, 1, 0
	end := func(at int) {
		if part := data[start:at]; len(bytes.TrimSpace(part)) > 0 {
			out = append(out, document{startLine, part})
		}
	}
	for at := 0; at < len(data); {
		line++
		next := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			next = at + i + 1
		}
		text := bytes.TrimRight(data[at:next], "\r\n")
		if rest, ok := marker(text); ok {
			end(at)
			// A document may begin on the line of its marker, as in "--- {a: b}".
			start, startLine = next, line+1
			if len(rest) > 0 {
				start, startLine = next-len(data[at:next])+len("---"), line
			}
		}
		at = next
	}
	end(len(data))
	return out
}

// marker reports whether a line separates documents, and returns the rest of the line unless that is a comment.
func marker(text []byte) (rest []byte, ok bool) {
	if bytes.Equal(bytes.TrimRight(text, " \t"), []byte("...")) {
		return nil, true
	}
	after, ok := bytes.CutPrefix(text, []byte("---"))
	if !ok || len(after) > 0 && after[0] != ' ' && after[0] != '\t' {
		return nil, false
	}
	rest = bytes.TrimSpace(after)
	if bytes.HasPrefix(rest, []byte("#")) {
		return nil, true
	}
	return rest, true
}

// splitJSON cuts a file of consecutive JSON values. It also returns the values before a syntax error.
func splitJSON(data []byte) ([]document, error) {
	var out []document
	decoder := json.NewDecoder(bytes.NewReader(data))
	for {
		var raw json.RawMessage
		before := decoder.InputOffset()
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			return out, fmt.Errorf("line %d: %w", lineAt(data, syntax.Offset), err)
		}
		if err != nil {
			return out, fmt.Errorf("line %d: %w", lineAt(data, before), err)
		}
		out = append(out, document{lineAt(data, decoder.InputOffset()-int64(len(raw))), raw})
	}
}

func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(max(0, offset), int64(len(data)))], []byte("\n"))
}
