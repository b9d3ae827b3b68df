package mounter

// Hold takes the turn of a volume, as a request does that hangs, until the function that it returns.
func (s *Server) Hold(v Volume) (end func()) { return s.turns.take(v) }
