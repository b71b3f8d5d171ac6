package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
)

// maxBody limits the body of a request, in bytes.
const maxBody = 1 << 20

// readBody decodes the body into a T. If it cannot, it writes the error reply and returns false. Unknown fields are ignored, so that newer clients work.
func readBody[T any](w http.ResponseWriter, r *http.Request) (value T, ok bool) {
	data, ok := readBytes(w, r)
	if !ok {
		return value, false
	}
	if len(bytes.TrimSpace(data)) == 0 {
		reject(w, http.StatusBadRequest, "body: missing, want JSON")
		return value, false
	}
	if err := json.Unmarshal(data, &value); err != nil {
		reject(w, http.StatusBadRequest, "body: "+explain(data, err))
		return value, false
	}
	return value, true
}

func readBytes(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	if kind := r.Header.Get("Content-Type"); kind != "" {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
			reject(w, http.StatusUnsupportedMediaType, fmt.Sprintf("body: content type %s: want application/json", clip(kind)))
			return nil, false
		}
	}
	data, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		reject(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("body: larger than %d bytes", tooLarge.Limit))
	case err != nil:
		reject(w, http.StatusBadRequest, "body: ends before its announced length: "+err.Error())
	}
	return data, err == nil
}

// explain describes the error in data and its field.
func explain(data []byte, err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Sprintf("field %s: is a JSON %s, want %s", clip(wrong.Field), wrong.Value, wrong.Type)
	}
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err.Error()
	}
	at := fmt.Sprintf("at byte %d", syntax.Offset)
	if field := lastField(data); field != "" {
		at = "in or after field " + clip(field) + ", " + at
	}
	return syntax.Error() + " " + at
}
