package cni

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
)

// maxLog is the size in bytes at which a log file is rotated. One previous file is kept.
const maxLog = 10 << 20

// openLog opens the log of one run. An unwritable log does not fail the command.
func openLog(c *netConf, command string, args *skel.CmdArgs) (log *slog.Logger, close func()) {
	if c.LogFile == "" {
		return slog.New(slog.DiscardHandler), func() {}
	}
	if info, err := os.Stat(c.LogFile); err == nil && info.Mode().IsRegular() && info.Size() > maxLog {
		if err := os.Rename(c.LogFile, c.LogFile+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			_ = os.Truncate(c.LogFile, 0) // a full disk is worse than lost log lines
		}
	}
	file, err := os.OpenFile(c.LogFile, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return slog.New(slog.DiscardHandler), func() {}
	}
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if c.EnableDebug {
		options.Level = slog.LevelDebug
	}
	var handler slog.Handler = slog.NewTextHandler(file, options)
	if c.LogFormat == "json" {
		handler = slog.NewJSONHandler(file, options)
	}
	log = slog.New(handler).With("command", command, "containerID", args.ContainerID, "ifName", args.IfName)
	return log, func() { _ = file.Close() }
}
