// Package jsonscan reads a few members of large JSON objects in one pass and skips the others. It reads only plain texts: any other input, such as an
// escape in a string that is read, makes a [Reader] unable, and the caller decodes the text with a library.
package jsonscan
